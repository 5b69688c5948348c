// What tests have sarama do: a command each, of which `commands` says the arguments.
//
//	sarama-client [-set NAME=VALUE]… [-ca FILE [-certificate FILE -key FILE]] COMMAND BOOTSTRAP …
//	sarama-client -version
//
// It prints each thing that happens in a line, "WHAT\tVALUE": "failed" for an error, "closed" at the end of a success.
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

// configOf has the library's defaults but for an idempotent producer, and then what the command line says.
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

func message(topic string, partition int, value []byte) *sarama.ProducerMessage {
	return &sarama.ProducerMessage{Topic: topic, Partition: int32(partition), Value: sarama.ByteEncoder(value)}
}
