package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"fleet/tests/clients/common"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions = 12
	atATime    = 50
	// A broker refuses records while it still ends the transaction before. franz-go sends the records again after
	// this interval, by default 5 s.
	again = 100 * time.Millisecond
)

// transact makes transactions with a record in each partition, and aborts every second one, but not the last one.
// It prints each record as "committed" or "aborted", and the producer's "epoch" at the end. "fenced" is the error of a
// transaction that begins after a successor has taken the id.
func transact(shared []kgo.Opt, arguments []string) error {
	topic, id := arguments[0], arguments[1]
	count, err := strconv.Atoi(arguments[2])
	if err != nil {
		return err
	}
	ctx := context.Background()
	own := []kgo.Opt{
		kgo.MetadataMinAge(again),
		kgo.TransactionalID(id),
		kgo.DefaultProduceTopic(topic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}
	client, err := kgo.NewClient(slices.Concat(shared, own)...)
	if err != nil {
		return err
	}
	defer client.Close()
	for number := range count {
		commit := (count-number)%2 == 1
		what := "aborted"
		if commit {
			what = "committed"
		}
		values, err := transaction(ctx, client, fmt.Sprint(what, number), kgo.TransactionEndTry(commit))
		if err != nil {
			return err
		}
		for _, value := range values {
			common.Tell(what, value)
		}
	}
	_, epoch, err := client.ProducerID(ctx)
	if err != nil {
		return err
	}
	common.Tell("epoch", epoch)
	successor, err := kgo.NewClient(slices.Concat(shared, own)...)
	if err != nil {
		return err
	}
	defer successor.Close()
	if _, _, err := successor.ProducerID(ctx); err != nil {
		return err
	}
	_, err = transaction(ctx, client, "fenced", kgo.TryCommit)
	outcome("fenced", err)
	return nil
}

// transaction returns the values of its records, after the acknowledgements and the end of the transaction.
func transaction(ctx context.Context, client *kgo.Client, name string, end kgo.TransactionEndTry) ([]string, error) {
	if err := client.BeginTransaction(); err != nil {
		return nil, err
	}
	var records []*kgo.Record
	var values []string
	for partition := range int32(partitions) {
		value := fmt.Sprintf("%s-%d", name, partition)
		values = append(values, value)
		records = append(records, &kgo.Record{Partition: partition, Value: []byte(value)})
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return nil, err
	}
	return values, client.EndTransaction(ctx, end)
}

// carry copies a number of committed records from a topic to the same partitions of a second topic. The transactions
// include the offsets of the first topic. carry aborts the first transaction, and prints each record as "aborted" or
// "carried".
func carry(shared []kgo.Opt, arguments []string) error {
	source, target, id := arguments[0], arguments[1], arguments[2]
	left, err := strconv.Atoi(arguments[3])
	if err != nil {
		return err
	}
	ctx := context.Background()
	session, err := kgo.NewGroupTransactSession(append(shared,
		kgo.MetadataMinAge(again),
		kgo.TransactionalID(id),
		kgo.ConsumerGroup(id),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DefaultProduceTopic(target),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)...)
	if err != nil {
		return err
	}
	defer session.Close()
	for end := kgo.TryAbort; left > 0; end = kgo.TryCommit {
		fetches := session.PollRecords(ctx, min(left, atATime))
		if err := fetches.Err(); err != nil {
			return err
		}
		if err := session.Begin(); err != nil {
			return err
		}
		var carried []*kgo.Record
		for _, record := range fetches.Records() {
			carried = append(carried, &kgo.Record{Partition: record.Partition, Value: record.Value})
		}
		if err := session.ProduceSync(ctx, carried...).FirstErr(); err != nil {
			return err
		}
		committed, err := session.End(ctx, end)
		if err != nil {
			return err
		}
		what := "aborted"
		if committed {
			what = "carried"
			left -= fetches.NumRecords()
		}
		for _, record := range fetches.Records() {
			common.Tell(what, string(record.Value))
		}
	}
	return nil
}
