// Decodes each document of a manifest into the type that Kubernetes has for it. A field that the type does not know, or
// that has another kind of value, ends the program with an error.
package main

import (
	"bytes"
	"fmt"
	"os"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func typed(kind string) any {
	switch kind {
	case "v1/Service":
		return &core.Service{}
	case "policy/v1/PodDisruptionBudget":
		return &policy.PodDisruptionBudget{}
	case "apps/v1/StatefulSet":
		return &apps.StatefulSet{}
	case "batch/v1/Job":
		return &batch.Job{}
	case "networking.k8s.io/v1/NetworkPolicy":
		return &networking.NetworkPolicy{}
	}
	return nil
}

func main() {
	data, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	for _, document := range bytes.Split(data, []byte("\n---\n")) {
		var head meta.TypeMeta
		if err := yaml.Unmarshal(document, &head); err != nil {
			panic(err)
		}
		kind := head.APIVersion + "/" + head.Kind
		value := typed(kind)
		if value == nil {
			panic("no type for " + kind)
		}
		if err := yaml.UnmarshalStrict(document, value); err != nil {
			panic(kind + ": " + err.Error())
		}
		fmt.Println(kind)
	}
}
