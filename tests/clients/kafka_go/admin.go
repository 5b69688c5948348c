package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"fleet/tests/clients/common"

	"github.com/segmentio/kafka-go"
)

const retention = "3600000"

// admin makes a topic, alters and describes it, and deletes it; it describes the cluster, a broker and a group.
// It prints each answer without addresses, so that a test can compare the answers of two clusters.
func admin(client common.Client, arguments []string) error {
	topic, group := arguments[0], arguments[1]
	return with(client, func(ctx context.Context, made parts) error {
		asks := made.client()
		for _, step := range []func() error{
			func() error { return creates(ctx, asks, topic) },
			func() error { return alters(ctx, asks, topic) },
			func() error { return describes(ctx, asks, kafka.ResourceTypeTopic, topic, "retention.ms="+retention) },
			func() error { return describes(ctx, asks, kafka.ResourceTypeBroker, "1", "node.id=1") },
			func() error { return cluster(ctx, asks, topic) },
			func() error { return groups(ctx, asks, group) },
			func() error { return deletes(ctx, asks, topic) },
		} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
}

func creates(ctx context.Context, asks *kafka.Client, topic string) error {
	made := kafka.TopicConfig{Topic: topic, NumPartitions: 3, ReplicationFactor: 3}
	response, err := asks.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{made}})
	if err != nil {
		return err
	}
	return outcome("created", response.Errors[topic])
}

func alters(ctx context.Context, asks *kafka.Client, topic string) error {
	resource := kafka.IncrementalAlterConfigsRequestResource{
		ResourceType: kafka.ResourceTypeTopic,
		ResourceName: topic,
		Configs: []kafka.IncrementalAlterConfigsRequestConfig{
			{Name: "retention.ms", Value: retention, ConfigOperation: kafka.ConfigOperationSet},
		},
	}
	response, err := asks.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{resource},
	})
	if err != nil {
		return err
	}
	return outcome("altered", response.Resources[0].Error)
}

// describes prints a configuration that has a setting. The first answers may come from a broker without the setting.
func describes(ctx context.Context, asks *kafka.Client, kind kafka.ResourceType, name, setting string) error {
	resource := kafka.DescribeConfigRequestResource{ResourceType: kind, ResourceName: name}
	var settings []string
	for !slices.Contains(settings, setting) {
		response, err := asks.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
			Resources: []kafka.DescribeConfigRequestResource{resource},
		})
		if err != nil {
			return err
		}
		settings = nil
		for _, each := range response.Resources[0].ConfigEntries {
			settings = append(settings, each.ConfigName+"="+each.ConfigValue)
		}
		time.Sleep(aWhile)
	}
	for _, each := range settings {
		common.Tell("config of "+name, each)
	}
	return nil
}

func cluster(ctx context.Context, asks *kafka.Client, topic string) error {
	response, err := asks.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return err
	}
	common.Tell("cluster", response.ClusterID)
	for _, each := range response.Brokers {
		common.Tell("broker", each.ID)
	}
	for _, each := range response.Topics {
		common.Tell("partitions", fmt.Sprint(each.Name, " ", len(each.Partitions)))
	}
	return nil
}

func groups(ctx context.Context, asks *kafka.Client, group string) error {
	listed, err := asks.ListGroups(ctx, &kafka.ListGroupsRequest{})
	if err != nil {
		return err
	}
	for _, each := range listed.Groups {
		if each.GroupID == group {
			common.Tell("listed", fmt.Sprint(each.Coordinator, " ", each.ProtocolType))
		}
	}
	described, err := asks.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{group}})
	if err != nil {
		return err
	}
	common.Tell("group", described.Groups[0].GroupState)
	fetched, err := asks.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group})
	if err != nil {
		return err
	}
	for _, topic := range slices.Sorted(maps.Keys(fetched.Topics)) {
		for _, each := range fetched.Topics[topic] {
			common.Tell("offset", fmt.Sprint(topic, " ", each.Partition, " ", each.CommittedOffset))
		}
	}
	return outcome("group described", described.Groups[0].Error)
}

func deletes(ctx context.Context, asks *kafka.Client, topic string) error {
	response, err := asks.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err != nil {
		return err
	}
	return outcome("deleted", response.Errors[topic])
}

func outcome(what string, err error) error {
	if err == nil {
		common.Tell(what, 0)
	}
	return err
}

// addresses prints the addresses that the client knows of the brokers, a topic's leaders and a group's coordinator.
func addresses(client common.Client, arguments []string) error {
	topic, group := arguments[0], arguments[1]
	return with(client, func(ctx context.Context, made parts) error {
		metadata, err := made.client().Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
		if err != nil {
			return err
		}
		for _, each := range metadata.Brokers {
			address("broker", each.ID, each.Host, each.Port)
		}
		address("controller", metadata.Controller.ID, metadata.Controller.Host, metadata.Controller.Port)
		found, err := made.client().FindCoordinator(ctx, &kafka.FindCoordinatorRequest{
			Key: group, KeyType: kafka.CoordinatorKeyTypeConsumer,
		})
		if err != nil {
			return err
		}
		address("coordinator", found.Coordinator.NodeID, found.Coordinator.Host, found.Coordinator.Port)
		// The reader's part of the library sends its own requests.
		partitions, err := made.dialer.LookupPartitions(ctx, "tcp", client.Bootstrap[0], topic)
		if err != nil {
			return err
		}
		for _, each := range partitions {
			address("leader", each.Leader.ID, each.Leader.Host, each.Leader.Port)
			for _, replica := range each.Replicas {
				address("replica", replica.ID, replica.Host, replica.Port)
			}
		}
		return found.Error
	})
}

func address(what string, id int, host string, port int) {
	common.Tell(what, strconv.Itoa(id)+" "+host+":"+strconv.Itoa(port))
}
