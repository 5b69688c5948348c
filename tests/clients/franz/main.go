// What tests have franz-go do: a command each, of which `commands` says the arguments.
//
//	franz-go-client [-mechanism M -username U -secret S] [-ca FILE [-certificate FILE -key FILE]] COMMAND BOOTSTRAP …
//	franz-go-client -version
//
// It prints what happens, each in a line, "WHAT\tVALUE": what has "failed", and "closed" in the end of all that went
// well.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// command is given the options that every client is to have, and the arguments that it names.
type command struct {
	arguments []string
	run       func(common []kgo.Opt, arguments []string) error
}

var commands = map[string]command{
	"work":     {[]string{"TOPIC", "GROUP", "classic|consumer"}, work},
	"rights":   {[]string{"NAME"}, rights},
	"transact": {[]string{"TOPIC", "ID", "TRANSACTIONS"}, transact},
	"carry":    {[]string{"SOURCE", "TARGET", "ID", "RECORDS"}, carry},
}

var printing sync.Mutex

func tell(what string, value any) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Printf("%s\t%v\n", what, value)
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

func mechanism(name, username, secret string) (sasl.Mechanism, error) {
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

func tlsConfig(authority, certificate, key string) (*tls.Config, error) {
	trusted, err := os.ReadFile(authority)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(trusted)
	if certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func usage() {
	fmt.Fprintln(os.Stderr, "franz-go-client [OPTIONS] COMMAND BOOTSTRAP …")
	for name, each := range commands {
		fmt.Fprintln(os.Stderr, " ", name, "BOOTSTRAP", strings.Join(each.arguments, " "))
	}
	flag.PrintDefaults()
}

func main() {
	told := flag.Bool("version", false, "print franz-go's version")
	name := flag.String("mechanism", "", "of SASL")
	username := flag.String("username", "", "of SASL, not for OAUTHBEARER")
	secret := flag.String("secret", "", "a password, or a token for OAUTHBEARER")
	authority := flag.String("ca", "", "a file; makes connections TLS")
	certificate := flag.String("certificate", "", "a file: the client's own")
	key := flag.String("key", "", "a file: the certificate's")
	flag.Usage = usage
	flag.Parse()
	if *told {
		fmt.Println(version())
		return
	}
	chosen, known := commands[flag.Arg(0)]
	if !known || flag.NArg() != 2+len(chosen.arguments) {
		usage()
		os.Exit(2)
	}
	common := []kgo.Opt{kgo.SeedBrokers(strings.Split(flag.Arg(1), ",")...)}
	err := func() error {
		if *name != "" {
			made, err := mechanism(*name, *username, *secret)
			if err != nil {
				return err
			}
			common = append(common, kgo.SASL(made))
		}
		if *authority != "" {
			made, err := tlsConfig(*authority, *certificate, *key)
			if err != nil {
				return err
			}
			common = append(common, kgo.DialTLSConfig(made))
		}
		return chosen.run(common, flag.Args()[2:])
	}()
	if err != nil {
		tell("failed", err)
		os.Exit(1)
	}
	tell("closed", "")
}
