// A program around franz-go for tests. Each command has its own function; `main` lists the arguments.
//
//	franz-go-client [-mechanism M -username U -secret S] [-ca FILE [-certificate FILE -key FILE]] COMMAND BOOTSTRAP …
//	franz-go-client -version
//
// The program prints each event in a line, "WHAT\tVALUE": "failed" for an error, "closed" at the end of a success.
package main

import (
	"flag"
	"fmt"

	"fleet/tests/clients/common"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

var (
	mechanismName = flag.String("mechanism", "", "of SASL")
	username      = flag.String("username", "", "of SASL, not for OAUTHBEARER")
	secret        = flag.String("secret", "", "a password, or a token for OAUTHBEARER")
)

func main() {
	common.Program{
		Name:   "franz-go",
		Module: "github.com/twmb/franz-go",
		Commands: map[string]common.Command{
			"work":     command(work, "TOPIC", "GROUP", "classic|consumer"),
			"rights":   command(rights, "NAME"),
			"transact": command(transact, "TOPIC", "ID", "TRANSACTIONS"),
			"carry":    command(carry, "SOURCE", "TARGET", "ID", "RECORDS"),
		},
	}.Main()
}

// command returns a command that runs with the options which the command line gives to every client.
func command(run func(shared []kgo.Opt, arguments []string) error, names ...string) common.Command {
	return common.Command{
		Arguments: names,
		Run: func(client common.Client, arguments []string) error {
			shared, err := optionsOf(client)
			if err != nil {
				return err
			}
			return run(shared, arguments)
		},
	}
}

// optionsOf knows no names of settings, so each -set option is an error.
func optionsOf(client common.Client) ([]kgo.Opt, error) {
	options := []kgo.Opt{kgo.SeedBrokers(client.Bootstrap...)}
	if *mechanismName != "" {
		mechanism, err := mechanismOf(*mechanismName, *username, *secret)
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.SASL(mechanism))
	}
	if client.TLS != nil {
		options = append(options, kgo.DialTLSConfig(client.TLS))
	}
	return options, client.Settings.Apply(nil)
}

func mechanismOf(name, username, secret string) (sasl.Mechanism, error) {
	switch name {
	case "PLAIN":
		return plain.Auth{User: username, Pass: secret}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: username, Pass: secret}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: username, Pass: secret}.AsSha512Mechanism(), nil
	case "OAUTHBEARER":
		return oauth.Auth{Token: secret}.AsMechanism(), nil
	}
	return nil, fmt.Errorf("no such mechanism: %s", name)
}
