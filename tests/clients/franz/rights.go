package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"fleet/tests/clients/common"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const limit = 60 * time.Second

// somebody tries operations, each with a new client.
type somebody struct {
	shared []kgo.Opt
}

// rights tries the operations of tests/integration/rights.py. It prints Kafka's error code of each one, or 0.
func rights(shared []kgo.Opt, arguments []string) error {
	who := somebody{shared}
	for _, topic := range []string{"open", "closed"} {
		outcome("produce "+topic, who.produces(topic))
		outcome("fetch "+topic, who.fetches(topic))
		outcome("configs "+topic, who.describes(kmsg.ConfigResourceTypeTopic, topic))
	}
	for _, whose := range []string{"mine", "theirs"} {
		own := whose + "-" + arguments[0]
		outcome("group "+whose, who.consumes("open", own))
		outcome("create "+whose, who.creates(own))
		outcome("transaction "+whose, who.isTransactional(own))
	}
	outcome("configs broker", who.describes(kmsg.ConfigResourceTypeBroker, "1"))
	outcome("delete closed", who.deletes("closed"))
	seen, err := who.lists("open", "closed")
	if err != nil {
		return err
	}
	common.Tell("list", strings.Join(seen, ","))
	return nil
}

func outcome(what string, err error) {
	var ofKafka *kerr.Error
	switch {
	case err == nil:
		common.Tell(what, 0)
	case errors.As(err, &ofKafka):
		common.Tell(what, ofKafka.Code)
	default:
		common.Tell(what, err)
	}
}

func (s somebody) with(use func(ctx context.Context, client *kgo.Client) error, own ...kgo.Opt) error {
	client, err := kgo.NewClient(slices.Concat(s.shared, own)...)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return use(ctx, client)
}

func (s somebody) produces(topic string) error {
	// Kafka refuses an idempotent producer without any right to write before it considers the topic.
	return s.with(func(ctx context.Context, client *kgo.Client) error {
		return client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr()
	}, kgo.DisableIdempotentWrite(), kgo.RecordPartitioner(kgo.ManualPartitioner()))
}

func (s somebody) fetches(topic string) error {
	from := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}
	return s.with(received, kgo.ConsumePartitions(from))
}

func (s somebody) consumes(topic, group string) error {
	return s.with(func(ctx context.Context, client *kgo.Client) error {
		if err := received(ctx, client); err != nil {
			return err
		}
		return client.CommitUncommittedOffsets(ctx)
	},
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
	)
}

func received(ctx context.Context, client *kgo.Client) error {
	return client.PollFetches(ctx).Err()
}

func (s somebody) isTransactional(id string) error {
	return s.with(func(ctx context.Context, client *kgo.Client) error {
		_, _, err := client.ProducerID(ctx)
		return err
	}, kgo.TransactionalID(id))
}

func (s somebody) describes(kind kmsg.ConfigResourceType, name string) error {
	return s.with(func(ctx context.Context, client *kgo.Client) error {
		resource := kmsg.NewDescribeConfigsRequestResource()
		resource.ResourceType, resource.ResourceName = kind, name
		request := kmsg.NewPtrDescribeConfigsRequest()
		request.Resources = append(request.Resources, resource)
		response, err := request.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(response.Resources[0].ErrorCode)
	})
}

func (s somebody) creates(name string) error {
	return s.with(func(ctx context.Context, client *kgo.Client) error {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, 1, 1
		request := kmsg.NewPtrCreateTopicsRequest()
		request.Topics = append(request.Topics, topic)
		response, err := request.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(response.Topics[0].ErrorCode)
	})
}

func (s somebody) deletes(name string) error {
	return s.with(func(ctx context.Context, client *kgo.Client) error {
		topic := kmsg.NewDeleteTopicsRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		request := kmsg.NewPtrDeleteTopicsRequest()
		request.Topics = append(request.Topics, topic)
		response, err := request.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(response.Topics[0].ErrorCode)
	})
}

// lists returns the names topics that the cluster's metadata names.
func (s somebody) lists(names ...string) (seen []string, err error) {
	err = s.with(func(ctx context.Context, client *kgo.Client) error {
		response, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, client)
		if err != nil {
			return err
		}
		for _, topic := range response.Topics {
			if slices.Contains(names, *topic.Topic) {
				seen = append(seen, *topic.Topic)
			}
		}
		slices.Sort(seen)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return seen, nil
}
