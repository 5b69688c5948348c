package common

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const every = 3 * time.Millisecond

// Ledger prints what happens to each record, and knows which records the group has not received yet.
type Ledger struct {
	mutex        sync.Mutex
	acknowledged map[string]bool
	received     map[string]bool
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{acknowledged: map[string]bool{}, received: map[string]bool{}}
}

// Acknowledged notes and prints a record that the cluster has acknowledged.
func (l *Ledger) Acknowledged(value []byte) { l.note("acknowledged", l.acknowledged, value) }

// Received notes and prints a record that the group has received.
func (l *Ledger) Received(value []byte) { l.note("received", l.received, value) }

func (l *Ledger) note(what string, in map[string]bool, value []byte) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	in[string(value)] = true
	Tell(what, string(value))
}

// Complete reports whether every acknowledged record was received.
func (l *Ledger) Complete() bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for value := range l.acknowledged {
		if !l.received[value] {
			return false
		}
	}
	return true
}

// Value is a record's: its partition and its number.
func Value(partition, number int) []byte {
	return fmt.Appendf(nil, "%d-%d", partition, number)
}

// PartitionOf is the partition that a record's value names.
func PartitionOf(value []byte) int {
	partition, _, _ := strings.Cut(string(value), "-")
	number, err := strconv.Atoi(partition)
	if err != nil {
		panic(err)
	}
	return number
}

// Produce sends a record every few milliseconds, to each partition in turn, until the channel is closed.
func Produce(partitions int, stopping <-chan struct{}, send func(partition int, value []byte)) {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for number := 0; ; number++ {
		select {
		case <-stopping:
			return
		case <-ticks.C:
			partition := number % partitions
			send(partition, Value(partition, number/partitions))
		}
	}
}

// AwaitEnd waits until standard input ends.
func AwaitEnd() error {
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}
