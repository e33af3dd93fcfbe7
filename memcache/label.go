package memcache

import (
	"fmt"
	"strings"
)

// Who allocates knows what for, and says so in the context: nothing is guessed afterwards from addresses, sizes or call
// stacks. A request looks its context up anyway, so that a label costs it the copy of a pointer.

// Label says what memory is for. Labels are comparable.
type Label struct {
	// Module is the path of the part of the model, its names joined by dots, and the type of its layer
	// if that is known, such as "encoder.0.linear (Linear)".
	Module   string
	Category Category
	Step     int64 // the training step; 0: none
	// Tags are the program's own pairs "key=value", a line each, in the order of the keys.
	Tags string
}

// ModulePath returns the path in the name of a module, without the type of its layer. That of a
// whole model, such as "(Net)", is "".
func ModulePath(module string) string {
	if i := strings.LastIndex(module, "("); i >= 0 && strings.HasSuffix(module, ")") && (i == 0 || module[i-1] == ' ') {
		return module[:max(0, i-1)]
	}
	return module
}

// String is the module with its category, such as "encoder.0 (activation)" or, with the type of a
// layer, "encoder.0 (Block, activation)", and the step.
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

// Category is what kind of data memory holds.
type Category uint8

// The categories.
const (
	CategoryOther          Category = iota // nobody said
	CategoryParameter                      // of a model, with its buffers
	CategoryGradient                       // of parameters, and what the backward pass makes
	CategoryOptimizerState                 // what an optimiser keeps for each parameter
	CategoryActivation                     // results of the forward pass
	CategoryInput                          // data and labels
	CategoryWorkspace                      // scratch memory of kernels and libraries
)

// String is the category's name in lower case.
func (c Category) String() string {
	names := [...]string{"other", "parameter", "gradient", "optimizer state", "activation", "input", "workspace"}
	if int(c) < len(names) {
		return names[c]
	}
	return "unknown"
}

// tagKey is how a key stands in front of its value.
func tagKey(key string) string { return strings.NewReplacer("\n", " ", "=", " ").Replace(key) + "=" }

// Tag is the value of one of the label's pairs; "" if there is none. The key is that of [WithTag].
func (l Label) Tag(key string) string {
	key = tagKey(key)
	for t := range strings.SplitSeq(l.Tags, "\n") {
		if v, ok := strings.CutPrefix(t, key); ok {
			return v
		}
	}
	return ""
}

// value is the label, or that of allocations without one.
func (l *Label) value() Label {
	if l == nil {
		return Label{}
	}
	return *l
}
