package main

import (
	"context"
	"sync"
	"time"

	"fleet/tests/clients/common"

	"github.com/twmb/franz-go/pkg/kgo"
)

// producerOf returns the function that sends a record to a partition, and notes the outcome.
func producerOf(client *kgo.Client, topic string, books *common.Ledger) func(partition int, value []byte) {
	return func(partition int, value []byte) {
		record := &kgo.Record{Topic: topic, Partition: int32(partition), Value: value}
		client.Produce(context.Background(), record, func(sent *kgo.Record, err error) {
			if err != nil {
				common.Tell("failed", err)
				return
			}
			books.Acknowledged(sent.Value)
		})
	}
}

func consume(client *kgo.Client, books *common.Ledger, flushed <-chan struct{}) {
	for {
		select {
		case <-flushed:
			if books.Complete() {
				return
			}
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		fetches := client.PollFetches(ctx)
		waited := ctx.Err() != nil
		cancel()
		if !waited {
			fetches.EachError(func(_ string, _ int32, err error) { common.Tell("failed", err) })
		}
		fetches.EachRecord(func(record *kgo.Record) { books.Received(record.Value) })
	}
}

// work runs a producer and a member of a group until standard input ends. It prints "acknowledged" and "received" for
// each record, and "failed" for each error that an application sees. At the end the group has received and committed
// all acknowledged records.
func work(shared []kgo.Opt, arguments []string) error {
	topic, group, protocol := arguments[0], arguments[1], arguments[2]
	ctx := context.Background()
	if protocol == "consumer" {
		// franz-go keeps the protocol of KIP-848 behind this key, which has no type of its own.
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true) //nolint:staticcheck
	}
	client, err := kgo.NewClient(append(shared,
		kgo.WithContext(ctx),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)...)
	if err != nil {
		return err
	}
	defer client.Close()
	books := common.NewLedger()
	stopping, flushed := make(chan struct{}), make(chan struct{})
	var producing, consuming sync.WaitGroup
	producing.Go(func() { common.Produce(partitions, stopping, producerOf(client, topic, books)) })
	consuming.Go(func() { consume(client, books, flushed) })
	if err := common.AwaitEnd(); err != nil {
		return err
	}
	close(stopping)
	producing.Wait()
	if err := client.Flush(context.Background()); err != nil {
		return err
	}
	close(flushed)
	consuming.Wait()
	return client.CommitUncommittedOffsets(context.Background())
}
