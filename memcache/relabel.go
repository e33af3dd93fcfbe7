package memcache

import (
	"context"
	"fmt"
)

// SetLabel changes the label of a block from now on. For example, the place of a parameter in the
// model is not yet known when the parameter is allocated. Profiles and snapshots show the new
// label, also those of an earlier peak; the history keeps the label of each moment. On a freed
// block it returns an error that wraps [ErrFreed]. On the zero Block it does nothing.
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
	if err := owner.checkLive(&b); err != nil {
		return fmt.Errorf("memcache: SetLabel of %s: %w", b, err)
	}
	b.handout.label = l
	owner.recordBlock(ActionRelabel, b.handout, b.serial, false)
	return nil
}

// Label returns the block's label; the zero Label after the block was freed.
func (b Block) Label() Label {
	if b.IsZero() {
		return Label{}
	}
	owner := b.handout.shard
	owner.mu.Lock()
	defer owner.mu.Unlock()
	if owner.checkLive(&b) != nil {
		return Label{}
	}
	return b.handout.label.value()
}
