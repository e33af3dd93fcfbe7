package memcache

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Options change while a cache runs. Requests read them through one pointer, which is replaced as a
// whole, so that a request sees either all old options or all new ones. Existing memory stays where
// it is.

// optionSet is a cache's options with the values derived from them. It is immutable.
type optionSet struct {
	config Config
	rules  placement.Rules
	vmm    device.VirtualMemory // with expandable segments
}

// newOptionSet checks a configuration for a device.
func newOptionSet(config Config, dev device.Device) (*optionSet, error) {
	rules, err := config.rules()
	if err != nil {
		return nil, err
	}
	if config.NoCaching {
		config.ExpandableSegments = false
	}
	s := &optionSet{config: config, rules: rules}
	if config.ExpandableSegments {
		var ok bool
		if s.vmm, ok = dev.(device.VirtualMemory); !ok {
			return nil, fmt.Errorf("memcache: ExpandableSegments on %s: %w: the device has no virtual memory", dev.Name(), ErrInvalid)
		}
	}
	return s, nil
}

// maxSplit returns the value of Stats.MaxSplitSize.
func (s *optionSet) maxSplit() int64 {
	if s.rules.MaxSplit == math.MaxInt64 {
		return -1
	}
	return s.rules.MaxSplit
}

func (all *shards) config() *Config         { return &all.options.Load().config }
func (all *shards) rules() *placement.Rules { return &all.options.Load().rules }

// Config returns the current options: those of New or of the last SetConfig, with the limit that
// was set last.
func (c *Cache) Config() Config { return *c.shards.config() }

// SetConfig changes the options of a cache in use. [Config.With] combines the present configuration
// with an option string, as PyTorch does for torch.cuda.memory._set_allocator_settings. NoCaching
// and Exact can't change, and the cache keeps its Observer whatever config contains. Requests that
// begin after SetConfig has returned use the new options. SetConfig waits for a request that is
// calling the driver, unless ctx ends first. After an error nothing has changed.
//
// Existing memory stays where it is. An expandable segment keeps the unit in which it grows. While
// ExpandableSegments is off, the free memory of expandable segments serves no request, as in
// PyTorch, and a flush returns it to the driver. OversizeAllocations and OversizeSegments follow
// the new MaxSplitSizeMB: what becomes oversize counts as allocated, and what no longer is counts
// as freed. (PyTorch counts a block by one limit when it is allocated and by another when it is
// freed, so that its count never returns to 0.)
func (c *Cache) SetConfig(ctx context.Context, config Config) error {
	old := c.shards.config()
	config.Observer = old.Observer
	s, err := newOptionSet(config, c.dev)
	if err != nil {
		return err
	}
	limit, err := config.limit(c.dev.Properties().TotalMemory)
	switch {
	case err != nil:
		return err
	case config.NoCaching != old.NoCaching:
		return fmt.Errorf("memcache: SetConfig: %w: NoCaching is %v, and can't change while the cache is in use", ErrInvalid, old.NoCaching)
	case config.Exact != old.Exact:
		return fmt.Errorf("memcache: SetConfig: %w: Exact is %v, and can't change while the cache is in use", ErrInvalid, old.Exact)
	}
	if invariants.Enabled {
		defer c.verify()
	}
	err = c.grower.releasing(ctx, "SetConfig", func() error {
		c.grower.apply(s, limit)
		return nil
	})
	c.grower.waits.freed() // the limit may be higher
	c.settle(ctx)
	return err
}

// apply makes the options, and the limit derived from them, those of the cache. Only the growth
// lock is held.
func (g *grower) apply(s *optionSet, limit int64) {
	if s.vmm != nil {
		g.vmm = s.vmm
	}
	g.shards.lockAll()
	defer g.shards.unlockAll()
	old := g.shards.options.Swap(s)
	g.shards.history.options(s.config)
	g.ledger.threshold = s.config.GarbageCollectionThreshold
	g.ledger.setLimit(limit)
	g.shards.releasable.Store(s.config.MaxCachedBytes != 0)
	g.ledger.stats.MaxSplitSize = s.maxSplit()
	for _, shard := range g.shards.list() {
		placement.SetRules(&shard.arena, &s.rules)
		shard.recountOversize(old.rules.MaxSplit, s.rules.MaxSplit)
	}
}

// recountOversize recounts the oversize blocks and segments after a change of max_split_size. All
// shards are locked.
func (s *shard) recountOversize(before, after int64) {
	if before == after {
		return
	}
	change := func(bytes int64) (n int64) {
		if bytes >= before {
			n--
		}
		if bytes >= after {
			n++
		}
		return n
	}
	for seg := range s.arena.Segments() {
		if !seg.Expandable() {
			s.shards.ledger.stats.OversizeSegments.change(change(seg.Bytes()))
		}
	}
	s.eachLive(func(h *handout) {
		if n := change(h.chunk.Size()); n != 0 {
			d := delta{gaugeOversizeBlocks: n}
			s.add(nil, h.chunk.Kind(), &d, true)
			countPool(h.chunk, &d)
		}
	})
}
