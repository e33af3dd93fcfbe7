package memcache

import (
	"fmt"
	"strings"
)

// The caller knows the purpose of an allocation, and labels it through the context, so nothing has
// to be guessed later from addresses, sizes or call stacks. A request looks up its context anyway,
// so that a label costs only the copy of a pointer.

// Label is the purpose of memory. Labels are comparable.
type Label struct {
	// Module is the path of the part of the model, its names joined by dots, followed by the type
	// of its layer if that is known, such as "encoder.0.linear (Linear)".
	Module   string
	Category Category
	Step     int64 // the training step; 0: none
	// Tags are the program's own pairs "key=value", one per line, sorted by key.
	Tags string
}

// ModulePath returns the path in the name of a module, without the type of its layer. The path of a
// whole model, such as "(Net)", is "".
func ModulePath(module string) string {
	if i := strings.LastIndex(module, "("); i >= 0 && strings.HasSuffix(module, ")") && (i == 0 || module[i-1] == ' ') {
		return module[:max(0, i-1)]
	}
	return module
}

// String returns the module, the category and the step, such as "encoder.0 (activation)" or, with
// the type of a layer, "encoder.0 (Block, activation)".
func (l Label) String() string {
	s := l.Category.String()
	if path := ModulePath(l.Module); path != l.Module {
		s = strings.TrimSuffix(l.Module, ")") + ", " + s + ")"
	} else if path != "" {
		s = path + " (" + s + ")"
	}
	if l.Step != 0 {
		s = fmt.Sprintf("%s in step %d", s, l.Step)
	}
	return s
}

// Category is the kind of data that memory holds.
type Category uint8

// The categories.
const (
	CategoryOther          Category = iota // not specified
	CategoryParameter                      // of a model, with its buffers
	CategoryGradient                       // of parameters, and other results of the backward pass
	CategoryOptimizerState                 // state of an optimiser for each parameter
	CategoryActivation                     // results of the forward pass
	CategoryInput                          // data and labels
	CategoryWorkspace                      // scratch memory of kernels and libraries
)

// String returns the category's name in lower case.
func (c Category) String() string {
	names := [...]string{"other", "parameter", "gradient", "optimizer state", "activation", "input", "workspace"}
	if int(c) < len(names) {
		return names[c]
	}
	return "unknown"
}

// tagKey returns the prefix of a key's line in Tags.
func tagKey(key string) string { return strings.NewReplacer("\n", " ", "=", " ").Replace(key) + "=" }

// Tag returns the value of one of the label's pairs, or "". The key is that of [WithTag].
func (l Label) Tag(key string) string {
	key = tagKey(key)
	for t := range strings.SplitSeq(l.Tags, "\n") {
		if v, ok := strings.CutPrefix(t, key); ok {
			return v
		}
	}
	return ""
}

// value returns the label, or the zero Label for nil.
func (l *Label) value() Label {
	if l == nil {
		return Label{}
	}
	return *l
}
