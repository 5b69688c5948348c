package main

import (
	"errors"
	"fmt"
	"strconv"

	"fleet/tests/clients/common"

	"github.com/IBM/sarama"
)

const partitions = 12

// transact makes transactions with a record in each partition, and aborts every second one, but not the last one.
// It prints each record as "committed" or "aborted". "fenced" is the error of a transaction that begins after a
// successor has taken the id.
func transact(client common.Client, arguments []string) error {
	topic, id := arguments[0], arguments[1]
	count, err := strconv.Atoi(arguments[2])
	if err != nil {
		return err
	}
	config, err := configOf(client)
	if err != nil {
		return err
	}
	config.Producer.Transaction.ID = id
	producer, err := sarama.NewAsyncProducer(client.Bootstrap, config)
	if err != nil {
		return err
	}
	for number := range count {
		what, end := "aborted", producer.AbortTxn
		if (count-number)%2 == 1 {
			what, end = "committed", producer.CommitTxn
		}
		values, err := transaction(producer, topic, fmt.Sprint(what, number), end)
		if err != nil {
			return err
		}
		for _, value := range values {
			common.Tell(what, value)
		}
	}
	successor, err := sarama.NewAsyncProducer(client.Bootstrap, config)
	if err != nil {
		return err
	}
	_, err = transaction(producer, topic, "fenced", producer.CommitTxn)
	if outcome("fenced", err) == nil {
		return errors.New("a producer with a successor was not fenced")
	}
	return successor.Close()
}

// transaction returns the values of its records, after the acknowledgements and the end of the transaction.
func transaction(producer sarama.AsyncProducer, topic, name string, end func() error) ([]string, error) {
	if err := producer.BeginTxn(); err != nil {
		return nil, err
	}
	var values []string
	for partition := range partitions {
		value := fmt.Sprintf("%s-%d", name, partition)
		values = append(values, value)
		producer.Input() <- message(topic, partition, []byte(value))
	}
	var failures []error
	for range values {
		select {
		case <-producer.Successes():
		case failed := <-producer.Errors():
			failures = append(failures, failed.Err)
		}
	}
	if err := errors.Join(failures...); err != nil {
		return nil, err
	}
	return values, end()
}
