// A program around kafka-go for tests. Each command has its own function; `commands` lists the arguments.
//
//	kafka-go-client [-set NAME=VALUE]… [-ca FILE [-certificate FILE -key FILE]] COMMAND BOOTSTRAP …
//	kafka-go-client -version
//
// The program prints each event in a line, "WHAT\tVALUE": "failed" for an error, "closed" at the end of a success.
package main

import (
	"context"
	"time"

	"fleet/tests/clients/common"

	"github.com/segmentio/kafka-go"
)

const limit = 60 * time.Second

func main() {
	common.Program{
		Name:   "kafka-go",
		Module: "github.com/segmentio/kafka-go",
		Commands: map[string]common.Command{
			"work":      {Arguments: []string{"TOPIC", "GROUP"}, Run: work},
			"admin":     {Arguments: []string{"TOPIC", "GROUP"}, Run: admin},
			"addresses": {Arguments: []string{"TOPIC", "GROUP"}, Run: addresses},
		},
	}.Main()
}

// parts are a program's values of kafka-go, by the names that `fleet client-config` gives them.
type parts struct {
	dialer    *kafka.Dialer
	transport *kafka.Transport
	writer    *kafka.Writer
	reader    *kafka.ReaderConfig
}

// partsOf makes them with the library's defaults, and then applies the command line.
func partsOf(client common.Client) (parts, error) {
	dialer := &kafka.Dialer{Timeout: kafka.DefaultDialer.Timeout, DualStack: true, TLS: client.TLS}
	transport := &kafka.Transport{TLS: client.TLS}
	writer := &kafka.Writer{
		Addr:         kafka.TCP(client.Bootstrap...),
		Transport:    transport,
		RequiredAcks: kafka.RequireAll,
		// By default a record waits for a second, which would hide the cost of a takeover.
		BatchTimeout: 10 * time.Millisecond,
	}
	reader := &kafka.ReaderConfig{Brokers: client.Bootstrap, Dialer: dialer}
	named := map[string]any{"dialer": dialer, "transport": transport, "writer": writer, "reader": reader}
	return parts{dialer, transport, writer, reader}, client.Settings.Apply(named)
}

func (p parts) client() *kafka.Client {
	return &kafka.Client{Addr: p.writer.Addr, Transport: p.transport, Timeout: limit}
}

// with calls a function with a client, within a time limit.
func with(client common.Client, do func(ctx context.Context, parts parts) error) error {
	made, err := partsOf(client)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return do(ctx, made)
}
