package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"fleet/tests/clients/common"

	"github.com/segmentio/kafka-go"
)

const (
	// atATime is the maximum number of records that are committed together.
	atATime = 50
	aWhile  = 100 * time.Millisecond
)

// worker is a writer, and a reader that is a member of a group.
type worker struct {
	books  *common.Ledger
	writer *kafka.Writer
	reader *kafka.Reader
	// writing counts the records that are not acknowledged yet.
	writing sync.WaitGroup
}

// work is a writer and a reader until standard input ends. It prints "acknowledged" and "received" for each record,
// "refused" for each record that kafka-go returned with an error, "committed" and "uncommitted" for each commit.
// A refused record is written again. At the end all acknowledged records are received and committed.
//
// kafka-go has no idempotent writer: a record that it sends again may be in the log twice.
func work(client common.Client, arguments []string) error {
	topic, group := arguments[0], arguments[1]
	made, err := partsOf(client)
	if err != nil {
		return err
	}
	partitions, err := made.dialer.LookupPartitions(context.Background(), "tcp", client.Bootstrap[0], topic)
	if err != nil {
		return err
	}
	made.reader.Topic, made.reader.GroupID = topic, group
	works := &worker{books: common.NewLedger(), writer: made.writer}
	works.writer.Topic = topic
	works.writer.Async = true
	works.writer.Completion = works.completed
	works.writer.Balancer = kafka.BalancerFunc(func(message kafka.Message, _ ...int) int {
		return common.PartitionOf(message.Value)
	})
	works.reader = kafka.NewReader(*made.reader)
	stopping, flushed, consumed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var producing sync.WaitGroup
	producing.Go(func() {
		common.Produce(len(partitions), stopping, func(_ int, value []byte) {
			works.writing.Add(1)
			works.write(value)
		})
	})
	go func() {
		defer close(consumed)
		works.consume(flushed)
	}()
	if err := common.AwaitEnd(); err != nil {
		return err
	}
	close(stopping)
	producing.Wait()
	works.writing.Wait()
	close(flushed)
	<-consumed
	return errors.Join(works.writer.Close(), works.reader.Close())
}

// write passes a record to the writer. It fails if kafka-go does not know the partitions.
func (w *worker) write(value []byte) {
	for {
		err := w.writer.WriteMessages(context.Background(), kafka.Message{Value: value})
		if err == nil {
			return
		}
		common.Tell("refused", fmt.Sprintf("%s: %v", value, err))
		time.Sleep(aWhile)
	}
}

func (w *worker) completed(messages []kafka.Message, err error) {
	for _, message := range messages {
		if err == nil {
			w.books.Acknowledged(message.Value)
			w.writing.Done()
			continue
		}
		common.Tell("refused", fmt.Sprintf("%s: %v", message.Value, err))
		go w.write(message.Value)
	}
}

// consume commits the records that it has received, in the same turn. The next commit repeats a failed one.
func (w *worker) consume(flushed <-chan struct{}) {
	newest := map[int]kafka.Message{}
	for {
		w.fetch(newest)
		if len(newest) == 0 && isClosed(flushed) && w.books.Complete() {
			return
		}
		if err := w.commit(newest); err != nil {
			common.Tell("uncommitted", err)
			continue
		}
		if len(newest) > 0 {
			common.Tell("committed", len(newest))
			clear(newest)
		}
	}
}

func isClosed(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

// fetch adds the newest record of each partition to the uncommitted records.
func (w *worker) fetch(newest map[int]kafka.Message) {
	ctx, cancel := context.WithTimeout(context.Background(), aWhile)
	defer cancel()
	for range atATime {
		message, err := w.reader.FetchMessage(ctx)
		if err != nil {
			if ctx.Err() == nil {
				common.Tell("interrupted", err)
			}
			return
		}
		w.books.Received(message.Value)
		newest[message.Partition] = message
	}
}

func (w *worker) commit(newest map[int]kafka.Message) error {
	messages := make([]kafka.Message, 0, len(newest))
	for _, message := range newest {
		messages = append(messages, message)
	}
	if len(messages) == 0 {
		return nil
	}
	return w.reader.CommitMessages(context.Background(), messages...)
}
