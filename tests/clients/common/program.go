// Package common is shared by the tests' programs around Go clients: their command line, their output, the ledger of
// records, and settings by the names that `fleet client-config` prints.
package common

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
)

// Client has the options of the command line that all clients share.
type Client struct {
	Bootstrap []string
	// TLS is nil for plaintext.
	TLS      *tls.Config
	Settings Settings
}

// Command names its arguments, and receives them.
type Command struct {
	Arguments []string
	Run       func(client Client, arguments []string) error
}

// Program is the command line of a program that is named after its library.
type Program struct {
	Name     string
	Module   string
	Commands map[string]Command
}

var printing sync.Mutex

// Tell prints one line, "WHAT\tVALUE".
func Tell(what string, value any) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Printf("%s\t%v\n", what, value)
}

// Main runs the command that the command line names. It prints "failed" for an error, and "closed" after a success.
func (p Program) Main() {
	version := flag.Bool("version", false, "print the library's version")
	authority := flag.String("ca", "", "a file; makes connections TLS")
	certificate := flag.String("certificate", "", "a file: the client's own")
	key := flag.String("key", "", "a file: the certificate's")
	var client Client
	flag.Var(&client.Settings, "set", "NAME=VALUE, as in fleet client-config; may be repeated")
	flag.Usage = p.usage
	flag.Parse()
	if *version {
		fmt.Println(p.version())
		return
	}
	command, known := p.Commands[flag.Arg(0)]
	if !known || flag.NArg() != 2+len(command.Arguments) {
		p.usage()
		os.Exit(2)
	}
	client.Bootstrap = strings.Split(flag.Arg(1), ",")
	err := func() (err error) {
		if *authority != "" {
			if client.TLS, err = tlsConfig(*authority, *certificate, *key); err != nil {
				return err
			}
		}
		return command.Run(client, flag.Args()[2:])
	}()
	if err != nil {
		Tell("failed", err)
		os.Exit(1)
	}
	Tell("closed", "")
}

func (p Program) version() string {
	build, _ := debug.ReadBuildInfo()
	for _, module := range build.Deps {
		if module.Path == p.Module {
			return module.Version
		}
	}
	return "unknown"
}

func (p Program) usage() {
	fmt.Fprintf(os.Stderr, "%s-client [OPTIONS] COMMAND BOOTSTRAP …\n", p.Name)
	for name, each := range p.Commands {
		fmt.Fprintln(os.Stderr, " ", name, "BOOTSTRAP", strings.Join(each.Arguments, " "))
	}
	flag.PrintDefaults()
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
