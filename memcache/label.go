package memcache

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Who allocates knows what for, and says so in the context: nothing is guessed afterwards from addresses, sizes or call
// stacks. A request looks its context up anyway, so that a label costs it the copy of a pointer.

// Label says what memory is for. Labels are comparable.
type Label struct {
	// Module is the path of the part of the model, its names joined by dots, such as "encoder.0.linear".
	Module   string
	Category Category
	Step     int64 // the training step; 0: none
	// Tags are the program's own pairs "key=value", a line each, in the order of the keys.
	Tags string
}

// String is the module with its category, such as "encoder.0 (activation)", and the step.
func (l Label) String() string {
	s := l.Category.String()
	if l.Module != "" {
		s = l.Module + " (" + s + ")"
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

// WithModule returns a context whose allocations belong to a part, by its name, of the module that ctx names.
func WithModule(ctx context.Context, name string) context.Context {
	return relabel(ctx, func(l *Label) {
		if l.Module != "" && name != "" {
			l.Module += "."
		}
		l.Module += name
	})
}

// WithCategory returns a context whose allocations are of a category.
func WithCategory(ctx context.Context, c Category) context.Context {
	return relabel(ctx, func(l *Label) { l.Category = c })
}

// WithStep returns a context whose allocations belong to a training step; 0: to none.
func WithStep(ctx context.Context, step int64) context.Context {
	return relabel(ctx, func(l *Label) { l.Step = step })
}

// WithTag returns a context whose allocations have a pair of the program's own, in place of an earlier one with the same
// key. Line ends in key and value, and each "=" in the key, become spaces.
func WithTag(ctx context.Context, key, value string) context.Context {
	key = tagKey(key)
	value = strings.ReplaceAll(value, "\n", " ")
	return relabel(ctx, func(l *Label) {
		var tags []string
		if l.Tags != "" {
			tags = strings.Split(l.Tags, "\n")
		}
		tags = slices.DeleteFunc(tags, func(t string) bool { return strings.HasPrefix(t, key) })
		tags = append(tags, key+value)
		slices.Sort(tags)
		l.Tags = strings.Join(tags, "\n")
	})
}

// WithLabel returns a context whose allocations have the label l, whatever label ctx has.
func WithLabel(ctx context.Context, l Label) context.Context {
	return relabel(ctx, func(own *Label) { *own = l })
}

// SetLabel changes what a block is for, from now on: who allocates a parameter does not know yet where in the model it will
// be. Profiles and snapshots show the new label, those of a peak that is past too; the history has what was said when. A
// block that was freed is an error that wraps [ErrFreed]. It does nothing on the zero Block.
func (b Block) SetLabel(l Label) error {
	if b.IsZero() {
		return nil
	}
	c := b.handout.shard.cache
	_ = c.shards.history.stream().admit(context.Background(), 0)
	_, op := c.reporter.start(context.Background(), OpRelabel)
	err := b.setLabel(&l)
	c.reporter.end(op, OpInfo{Op: OpRelabel, Stream: b.stream, Serial: b.serial, Bytes: b.size, Label: l, Err: err})
	return err
}

func (b Block) setLabel(l *Label) error {
	owner := b.handout.shard
	owner.mu.Lock()
	defer owner.mu.Unlock()
	if err := owner.checkLive(b); err != nil {
		return fmt.Errorf("memcache: SetLabel of %s: %w", b, err)
	}
	b.handout.label = l
	owner.recordBlock(ActionRelabel, b.handout, b.serial, false)
	return nil
}

// Label is what the block is for; the zero Label after it was freed.
func (b Block) Label() Label {
	if b.IsZero() {
		return Label{}
	}
	owner := b.handout.shard
	owner.mu.Lock()
	defer owner.mu.Unlock()
	if owner.checkLive(b) != nil {
		return Label{}
	}
	return b.handout.label.value()
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

// LabelOf is the label that ctx gives to allocations.
func LabelOf(ctx context.Context) Label { return ctxStateOf(ctx).label.value() }

// relabel returns a context with a label of its own. The labels of contexts are never changed: blocks point at them.
func relabel(ctx context.Context, change func(*Label)) context.Context {
	return carry(ctx, func(c *carrier) {
		c.label = c.state.label.value()
		change(&c.label)
		c.state.label = &c.label
	})
}

// value is the label, or that of allocations without one.
func (l *Label) value() Label {
	if l == nil {
		return Label{}
	}
	return *l
}
