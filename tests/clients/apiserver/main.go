// kube-apiserver as it is in k8s.io/kubernetes: its go.mod replaces modules, and `go install` takes none that does.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	os.Exit(cli.Run(app.NewAPIServerCommand()))
}
