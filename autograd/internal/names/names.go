// Package names has the names of parameters and modules, such as "blocks.0.weight".
package names

import "strings"

// Join returns the name of a thing inside of another one. Either may be "".
func Join(outer, inner string) string {
	if outer == "" || inner == "" {
		return outer + inner
	}
	return outer + "." + inner
}

// Module returns the module that a parameter belongs to by its name.
func Module(parameter string) string {
	return parameter[:max(0, strings.LastIndexByte(parameter, '.'))]
}
