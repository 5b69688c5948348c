package main

import (
	"context"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const every = 3 * time.Millisecond

// ledger tells what happens to each record, and knows what is still to be received.
type ledger struct {
	mutex        sync.Mutex
	acknowledged map[string]bool
	received     map[string]bool
}

func (l *ledger) note(what string, in map[string]bool, value []byte) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	in[string(value)] = true
	tell(what, string(value))
}

func (l *ledger) complete() bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for value := range l.acknowledged {
		if !l.received[value] {
			return false
		}
	}
	return true
}

func produce(client *kgo.Client, topic string, books *ledger, stopping <-chan struct{}) {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for number := 0; ; number++ {
		select {
		case <-stopping:
			return
		case <-ticks.C:
		}
		record := &kgo.Record{Topic: topic, Value: []byte(strconv.Itoa(number))}
		client.Produce(context.Background(), record, func(sent *kgo.Record, err error) {
			if err != nil {
				tell("failed", err)
				return
			}
			books.note("acknowledged", books.acknowledged, sent.Value)
		})
	}
}

func consume(client *kgo.Client, books *ledger, flushed <-chan struct{}) {
	for {
		select {
		case <-flushed:
			if books.complete() {
				return
			}
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		fetches := client.PollFetches(ctx)
		waited := ctx.Err() != nil
		cancel()
		if !waited {
			fetches.EachError(func(_ string, _ int32, err error) { tell("failed", err) })
		}
		fetches.EachRecord(func(record *kgo.Record) { books.note("received", books.received, record.Value) })
	}
}

// work is a producer and a member of a group until standard input ends. It tells "acknowledged" and "received" for
// each record, and "failed" for each error that an application is told; in the end all that was acknowledged has
// been received, and is committed.
func work(common []kgo.Opt, arguments []string) error {
	topic, group, protocol := arguments[0], arguments[1], arguments[2]
	ctx := context.Background()
	if protocol == "consumer" {
		// franz-go keeps the protocol of KIP-848 behind this key, which has no type of its own.
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true) //nolint:staticcheck
	}
	client, err := kgo.NewClient(append(common,
		kgo.WithContext(ctx),
		kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)...)
	if err != nil {
		return err
	}
	defer client.Close()
	books := &ledger{acknowledged: map[string]bool{}, received: map[string]bool{}}
	stopping, flushed, consumed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var producing sync.WaitGroup
	producing.Add(1)
	go func() {
		defer producing.Done()
		produce(client, topic, books, stopping)
	}()
	go func() {
		defer close(consumed)
		consume(client, books, flushed)
	}()
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	close(stopping)
	producing.Wait()
	if err := client.Flush(context.Background()); err != nil {
		return err
	}
	close(flushed)
	<-consumed
	return client.CommitUncommittedOffsets(context.Background())
}
