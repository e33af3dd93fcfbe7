package main

import "strings"

// parameter is one of a function.
type parameter struct{ name, kind string }

// parameters are those of a list as Go has it: names that share a type stand before it.
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
