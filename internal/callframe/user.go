package callframe

import (
	"slices"
	"strings"
)

// module is the prefix of the names of this module's functions.
const module = "github.com/cistern-ml/cistern/"

// between lists packages of the standard library that call functions of this module on its behalf.
var between = []string{"context", "internal", "iter", "maps", "reflect", "runtime", "slices", "sort", "sync", "testing"}

// IsUser reports whether a function belongs to the program that uses this module: a function of a
// test, of examples, or of neither this module nor the packages in between. Functions of other
// languages, as in recordings of Python, belong to the program.
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

// FromUser returns the part of a stack, the innermost call first, from the user's innermost line
// on, without functions of this module that programs can't call. A stack without such a line is of
// a goroutine of this module. For it FromUser returns the outermost function that programs can call
// or, if that is the allocator's, the outermost one with a name. named returns a call's function
// and file. The result shares the stack's memory.
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
