package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"fleet/tests/clients/common"

	"github.com/IBM/sarama"
)

// work runs an idempotent producer and a member of a group until standard input ends. It prints "acknowledged" and
// "received" for each record, "refused" for each record that sarama returned with an error, and "reported" for each
// error of the group's channel. At the end the group has received and committed all acknowledged records.
func work(client common.Client, arguments []string) error {
	topic, group := arguments[0], arguments[1]
	knows, err := clientOf(client)
	if err != nil {
		return err
	}
	partitions, err := knows.Partitions(topic)
	if err != nil {
		return err
	}
	producer, err := sarama.NewAsyncProducerFromClient(knows)
	if err != nil {
		return err
	}
	consumer, err := sarama.NewConsumerGroup(client.Bootstrap, group, knows.Config())
	if err != nil {
		return err
	}
	books, stopping := common.NewLedger(), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var producing, settling, consuming, outstanding sync.WaitGroup
	producing.Go(func() {
		common.Produce(len(partitions), stopping, func(partition int, value []byte) {
			outstanding.Add(1)
			producer.Input() <- message(topic, partition, value)
		})
	})
	settling.Go(func() { settle(producer, books, &outstanding) })
	consuming.Go(func() { consume(ctx, consumer, topic, &handler{books}) })
	go func() {
		for err := range consumer.Errors() {
			common.Tell("reported", err)
		}
	}()
	if err := common.AwaitEnd(); err != nil {
		return err
	}
	close(stopping)
	producing.Wait()
	// A closing producer returns a record with ErrShuttingDown instead of a retry.
	outstanding.Wait()
	producer.AsyncClose()
	settling.Wait()
	for !books.Complete() {
		time.Sleep(aWhile)
	}
	cancel()
	consuming.Wait()
	return errors.Join(consumer.Close(), knows.Close())
}

// settle notes the outcome of each outstanding record until the producer has closed.
func settle(producer sarama.AsyncProducer, books *common.Ledger, outstanding *sync.WaitGroup) {
	var both sync.WaitGroup
	both.Go(func() {
		for sent := range producer.Successes() {
			books.Acknowledged(sent.Value.(sarama.ByteEncoder))
			outstanding.Done()
		}
	})
	both.Go(func() {
		for failed := range producer.Errors() {
			common.Tell("refused", fmt.Sprintf("%s: %v", failed.Msg.Value, failed.Err))
			outstanding.Done()
		}
	})
	both.Wait()
}

// consume joins the group again after the end of each session, as sarama requires of applications.
func consume(ctx context.Context, group sarama.ConsumerGroup, topic string, handler *handler) {
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{topic}, handler); err != nil {
			common.Tell("interrupted", err)
		}
	}
}

type handler struct{ books *common.Ledger }

func (*handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case <-session.Context().Done():
			return nil
		case received, open := <-claim.Messages():
			if !open {
				return nil
			}
			h.books.Received(received.Value)
			session.MarkMessage(received, "")
		}
	}
}
