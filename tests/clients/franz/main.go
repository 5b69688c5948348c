// A producer and a member of a group, both of franz-go, at work until standard input ends.
//
//	franz-go-client BOOTSTRAP TOPIC GROUP classic|consumer
//	franz-go-client --version
//
// It prints a line for each record, "acknowledged N" or "received N", "failed …" for each error that an application
// is told, and "closed" in the end: all that was acknowledged has been received then, and is committed.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const every = 3 * time.Millisecond

// ledger prints what happens to each record, and knows what is still to be received.
type ledger struct {
	mutex        sync.Mutex
	acknowledged map[string]bool
	received     map[string]bool
}

func (l *ledger) note(what string, in map[string]bool, value []byte) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	in[string(value)] = true
	fmt.Println(what, string(value))
}

func (l *ledger) failed(err error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	fmt.Println("failed", err)
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

func version() string {
	build, _ := debug.ReadBuildInfo()
	for _, module := range build.Deps {
		if module.Path == "github.com/twmb/franz-go" {
			return module.Version
		}
	}
	return "unknown"
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
				books.failed(err)
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
			fetches.EachError(func(_ string, _ int32, err error) { books.failed(err) })
		}
		fetches.EachRecord(func(record *kgo.Record) { books.note("received", books.received, record.Value) })
	}
}

func work(bootstrap, topic, group, protocol string) error {
	ctx := context.Background()
	if protocol == "consumer" {
		// franz-go keeps the protocol of KIP-848 behind this key, which has no type of its own.
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true) //nolint:staticcheck
	}
	client, err := kgo.NewClient(
		kgo.WithContext(ctx),
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
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

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println(version())
		return
	}
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: franz-go-client BOOTSTRAP TOPIC GROUP classic|consumer")
		os.Exit(2)
	}
	if err := work(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	fmt.Println("closed")
}
