// A program around sarama for tests. Each command has its own function; `main` lists the arguments.
//
//	sarama-client [-set NAME=VALUE]… [-ca FILE [-certificate FILE -key FILE]] COMMAND BOOTSTRAP …
//	sarama-client -version
//
// The program prints each event in a line, "WHAT\tVALUE": "failed" for an error, "closed" at the end of a success.
package main

import (
	"fleet/tests/clients/common"

	"github.com/IBM/sarama"
)

func main() {
	common.Program{
		Name:   "sarama",
		Module: "github.com/IBM/sarama",
		Commands: map[string]common.Command{
			"work":      {Arguments: []string{"TOPIC", "GROUP"}, Run: work},
			"admin":     {Arguments: []string{"TOPIC", "GROUP"}, Run: admin},
			"addresses": {Arguments: []string{"TOPIC", "GROUP"}, Run: addresses},
			"transact":  {Arguments: []string{"TOPIC", "ID", "TRANSACTIONS"}, Run: transact},
		},
	}.Main()
}

// configOf returns the library's defaults with an idempotent producer, and with the settings of the command line.
func configOf(client common.Client) (*sarama.Config, error) {
	config := sarama.NewConfig()
	config.Net.TLS.Enable = client.TLS != nil
	config.Net.TLS.Config = client.TLS
	config.Net.MaxOpenRequests = 1
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config, client.Settings.Apply(map[string]any{"config": config})
}

// clientOf returns a connected client. Its Config serves the parts of sarama that connect by themselves.
func clientOf(client common.Client) (sarama.Client, error) {
	config, err := configOf(client)
	if err != nil {
		return nil, err
	}
	return sarama.NewClient(client.Bootstrap, config)
}

func message(topic string, partition int, value []byte) *sarama.ProducerMessage {
	return &sarama.ProducerMessage{Topic: topic, Partition: int32(partition), Value: sarama.ByteEncoder(value)}
}
