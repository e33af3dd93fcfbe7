// Package names joins and splits the names of parameters and modules, such as "blocks.0.weight".
package names

import (
	"strings"

	"github.com/cistern-ml/cistern/memcache"
)

// Join returns the name of inner inside of outer. Either may be "".
func Join(outer, inner string) string {
	if outer == "" || inner == "" {
		return outer + inner
	}
	return outer + "." + inner
}

// Inside reports whether a path is outer or a part of it. Everything is inside of "".
func Inside(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || outer == "" || rest[0] == '.')
}

// Part returns the module of a part of the module outer, with the part's type, layer, in
// parentheses: see memcache.Label.
func Part(outer, part, layer string) string {
	path := Join(memcache.ModulePath(outer), part)
	switch {
	case layer == "":
		return path
	case path == "":
		return "(" + layer + ")"
	}
	return path + " (" + layer + ")"
}

// Holder returns the module, inside of outer, of the layer that has a parameter of this name.
func Holder(outer, parameter, layer string) string {
	if Module(parameter) == "" && layer == "" {
		return outer
	}
	return Part(outer, Module(parameter), layer)
}

// Layer returns the type in the name of a module.
func Layer(module string) string {
	return strings.Trim(module[len(memcache.ModulePath(module)):], " ()")
}

// Module returns the module that a parameter belongs to by its name.
func Module(parameter string) string {
	return parameter[:max(0, strings.LastIndexByte(parameter, '.'))]
}
