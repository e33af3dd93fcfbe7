package main

import "strings"

// parameter is a parameter of a function.
type parameter struct{ name, kind string }

// parameters parses a parameter list of Go, in which names that share a type come before it.
func parameters(list string) (all []parameter) {
	kind := ""
	parts := strings.Split(list, ", ")
	for i := len(parts) - 1; i >= 0; i-- {
		name, k, ok := strings.Cut(parts[i], " ")
		if ok {
			kind = k
		}
		all = append([]parameter{{name, kind}}, all...)
	}
	return all
}
