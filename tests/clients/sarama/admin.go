package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"fleet/tests/clients/common"

	"github.com/IBM/sarama"
)

const (
	retention = "3600000"
	attempts  = 300
	aWhile    = 100 * time.Millisecond
)

// admin makes a topic, alters and describes it, and deletes it; it describes the cluster, a broker and a group.
// It prints each answer without addresses, so that a test can compare the answers of two clusters.
func admin(client common.Client, arguments []string) error {
	topic, group := arguments[0], arguments[1]
	knows, err := clientOf(client)
	if err != nil {
		return err
	}
	asks, err := sarama.NewClusterAdminFromClient(knows)
	if err != nil {
		return errors.Join(err, knows.Close())
	}
	for _, step := range []func() error{
		func() error { return outcome("created", creates(asks, topic)) },
		func() error { return outcome("altered", alters(asks, topic)) },
		func() error { return describes(asks, sarama.TopicResource, topic, "retention.ms="+retention) },
		func() error { return describes(asks, sarama.BrokerResource, "1", "node.id=1") },
		func() error { return cluster(asks) },
		func() error { return groups(asks, group) },
		func() error { return outcome("deleted", asks.DeleteTopic(topic)) },
	} {
		if err := step(); err != nil {
			return errors.Join(err, asks.Close())
		}
	}
	return asks.Close()
}

func creates(asks sarama.ClusterAdmin, topic string) error {
	return asks.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 3}, false)
}

func alters(asks sarama.ClusterAdmin, topic string) error {
	value := retention
	entry := sarama.IncrementalAlterConfigsEntry{
		Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value,
	}
	entries := map[string]sarama.IncrementalAlterConfigsEntry{"retention.ms": entry}
	return asks.IncrementalAlterConfig(sarama.TopicResource, topic, entries, false)
}

// describes prints a configuration that has a setting. The first answers may come from a broker without the setting.
func describes(asks sarama.ClusterAdmin, kind sarama.ConfigResourceType, name, setting string) error {
	var settings []string
	for range attempts {
		entries, err := asks.DescribeConfig(sarama.ConfigResource{Type: kind, Name: name})
		if err != nil {
			return err
		}
		settings = nil
		for _, each := range entries {
			settings = append(settings, each.Name+"="+each.Value)
		}
		if slices.Contains(settings, setting) {
			break
		}
		time.Sleep(aWhile)
	}
	for _, each := range settings {
		common.Tell("config of "+name, each)
	}
	return nil
}

func cluster(asks sarama.ClusterAdmin) error {
	brokers, _, err := asks.DescribeCluster()
	for _, id := range idsOf(brokers) {
		common.Tell("broker", id)
	}
	return outcome("cluster described", err)
}

func idsOf(brokers []*sarama.Broker) []int32 {
	var ids []int32
	for _, each := range brokers {
		ids = append(ids, each.ID())
	}
	slices.Sort(ids)
	return ids
}

func groups(asks sarama.ClusterAdmin, group string) error {
	listed, err := asks.ListConsumerGroups()
	if err != nil {
		return err
	}
	common.Tell("listed", listed[group])
	described, err := asks.DescribeConsumerGroups([]string{group})
	if err != nil {
		return err
	}
	common.Tell("group", described[0].State+" "+described[0].ProtocolType)
	fetched, err := asks.ListConsumerGroupOffsets(group, nil)
	if err != nil {
		return err
	}
	for _, topic := range slices.Sorted(maps.Keys(fetched.Blocks)) {
		for _, partition := range slices.Sorted(maps.Keys(fetched.Blocks[topic])) {
			common.Tell("offset", fmt.Sprint(topic, " ", partition, " ", fetched.Blocks[topic][partition].Offset))
		}
	}
	return outcome("group described", fetched.Err)
}

// outcome prints Kafka's code of an error, or 0, and returns the error, or nil for a success.
func outcome(what string, err error) error {
	var ofKafka sarama.KError
	switch {
	case err == nil:
		common.Tell(what, 0)
	case errors.As(err, &ofKafka):
		common.Tell(what, int16(ofKafka))
		if ofKafka == sarama.ErrNoError {
			return nil
		}
	}
	return err
}

// addresses prints the addresses that the client knows of the brokers, a topic's leaders and the coordinators.
func addresses(client common.Client, arguments []string) error {
	topic, group := arguments[0], arguments[1]
	knows, err := clientOf(client)
	if err != nil {
		return err
	}
	defer knows.Close()
	for _, each := range knows.Brokers() {
		address("broker", each)
	}
	partitions, err := knows.Partitions(topic)
	if err != nil {
		return err
	}
	for _, partition := range partitions {
		leader, err := knows.Leader(topic, partition)
		if err != nil {
			return err
		}
		address("leader", leader)
	}
	for what, ask := range map[string]func() (*sarama.Broker, error){
		"controller":              knows.Controller,
		"coordinator":             func() (*sarama.Broker, error) { return knows.Coordinator(group) },
		"transaction coordinator": func() (*sarama.Broker, error) { return knows.TransactionCoordinator(group) },
	} {
		found, err := ask()
		if err != nil {
			return err
		}
		address(what, found)
	}
	return nil
}

func address(what string, broker *sarama.Broker) {
	common.Tell(what, fmt.Sprint(broker.ID(), " ", broker.Addr()))
}
