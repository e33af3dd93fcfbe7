package callframe

import (
	"slices"
	"strings"
)

// module begins the names of this module's functions.
const module = "github.com/cistern-ml/cistern/"

// between are packages of the standard library that call functions of this module for it.
var between = []string{"context", "internal", "iter", "maps", "reflect", "runtime", "slices", "sort", "sync", "testing"}

// IsUser reports whether a function is of the program that uses this module: one of a test, of
// examples, or of no package of the module and of none that calls its functions for it. Functions
// of other languages, as in recordings of Python, are the program's.
func IsUser(function, file string) bool {
	if strings.HasSuffix(file, "_test.go") || !strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, ".s") {
		return true
	}
	if path, ok := strings.CutPrefix(function, module); ok {
		return strings.HasPrefix(path, "examples/")
	}
	first, _, _ := strings.Cut(function, "/")
	first, _, _ = strings.Cut(first, ".")
	return !slices.Contains(between, first)
}

// FromUser returns a stack, the innermost call first, from the line of the user's program on,
// without functions of this module that programs can't call. A stack without such a line, of a
// goroutine of this module, is the outermost function that programs can call, unless that is the
// allocator's: then the outermost one with a name. named returns a call's function and file. The
// result has the stack's memory.
func FromUser[F any](stack []F, named func(F) (function, file string)) []F {
	user := func(f F) bool { return IsUser(named(f)) }
	ours := func(f F) (path string, ok bool) {
		function, _ := named(f)
		return strings.CutPrefix(function, module)
	}
	if begin := slices.IndexFunc(stack, user); begin >= 0 {
		return slices.DeleteFunc(stack[begin:], func(f F) bool {
			path, ok := ours(f)
			return ok && !user(f) && !isPublic(path)
		})
	}
	outermost := func(wanted func(path string) bool) []F {
		for i := len(stack) - 1; i >= 0; i-- {
			if path, ok := ours(stack[i]); ok && wanted(path) {
				return stack[i : i+1]
			}
		}
		return nil
	}
	if public := outermost(func(path string) bool { return isPublic(path) && !strings.HasPrefix(path, "memcache.") }); public != nil {
		return public
	}
	if private := outermost(func(path string) bool { return !strings.Contains(path, ".func") }); private != nil {
		return private
	}
	return stack
}

// isPublic reports whether programs can call a function of this module.
func isPublic(path string) bool {
	if strings.Contains("/"+path, "/internal/") {
		return false
	}
	path = strings.ReplaceAll(path, "[...]", "")
	_, name, _ := strings.Cut(path[strings.LastIndexByte(path, '/')+1:], ".")
	for part := range strings.SplitSeq(name, ".") {
		part = strings.Trim(part, "(*)")
		if part == "" || part[0] < 'A' || part[0] > 'Z' {
			return false
		}
	}
	return true
}
