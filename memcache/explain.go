package memcache

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/shortage"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// mostHolders is the maximum number of holders in an error.
const mostHolders = 3

// explain adds advice and the largest holders to the error of a request that has finally failed. It
// is not part of outOfMemory, because most of those errors are not reported: a flush or a reclaimer
// makes the retry succeed. No lock is held.
func (g *grower) explain(stream device.Stream, r *request, err error) {
	var oom *OutOfMemoryError
	if errors.As(err, &oom) {
		if oom.Free >= 0 && oom.Waited == 0 { // otherwise the figures are not those of the refusal
			oom.Advice = g.books(stream, r, oom).Advise()
		}
		oom.Holders = g.ledger.holders()
	}
}

// holders returns the labels with the most bytes; nil if no memory has a label.
func (l *ledger) holders() []Share {
	p := l.profile()
	if !slices.ContainsFunc(p.Holdings, func(h Holding) bool { return h.Label != (Label{}) }) {
		return nil
	}
	shares := p.Sum(func(h Holding) string { return Label{Module: h.Module, Category: h.Category}.String() })
	return shares[:min(len(shares), mostHolders)]
}

// books returns the memory in the terms of package shortage. No lock is held.
func (g *grower) books(stream device.Stream, r *request, e *OutOfMemoryError) *shortage.Books {
	g.shards.lockAll()
	defer g.shards.unlockAll()
	config, rules := g.shards.config(), g.shards.rules()
	b := &shortage.Books{
		Bytes: r.Bytes, Segment: r.segmentBytes, Stream: r.shard.id, Pool: poolName(r.Pool), Small: r.Kind == placement.Small,
		Free: e.Free, Refused: errors.Is(e.Err, device.ErrOutOfMemory), Limit: g.ledger.limitBytes(), Reserved: g.ledger.stats.ReservedBytes.All.Current,
		Splits: config.MaxSplitSizeMB == 0 && !config.ExpandableSegments && !config.NoCaching,
		IdleGC: config.GarbageCollectionThreshold > 0 && !g.ledger.gcArmed(),
	}
	if _, ok := g.dev.(device.VirtualMemory); ok && !config.ExpandableSegments && !config.NoCaching {
		b.Granule = rules.Granule
	}
	lends := !r.rejected && config.ReuseAcrossStreams == ReuseNever && !config.Exact && r.Pool == nil && !captured([]device.Stream{stream})
	unflushed := r.rejected && !g.shards.inContext()
	for _, s := range g.shards.list() {
		if lends && !b.Lends && s != r.shard && !captured([]device.Stream{s.stream}) && s.arena.Find(&r.Want) != nil {
			b.Lends, b.Lender = true, s.id
		}
		for seg := range s.arena.Segments() {
			b.Segments = append(b.Segments, segmentOf(seg, unflushed, config.Exact))
		}
	}
	return b
}

// segmentOf returns a segment in the terms of package shortage. All shards are locked.
func segmentOf(seg *placement.Segment, unflushed, exact bool) shortage.Segment {
	p := seg.Pool()
	s := shortage.Segment{
		Stream: seg.Stream(), Pool: poolName(p), Small: seg.Kind() == placement.Small, Expandable: seg.Expandable(),
		Kept: p == nil && unflushed || p != nil && !p.Released && !p.Pinned() && !exact,
	}
	for m := seg.First(); m != nil; m = m.Next() {
		if !m.Unmapped() {
			s.Blocks = append(s.Blocks, shortage.Block{Bytes: m.Size(), Used: !m.Free()})
		}
	}
	return s
}

// poolName returns the name of a pool for books; "" is the default pool.
func poolName(p *placement.Pool) string {
	switch {
	case p == nil:
		return ""
	case p.ID[0] != 0:
		return fmt.Sprintf("private pool {%d, 0}", p.ID[0])
	}
	return fmt.Sprintf("private pool %d", p.ID[1])
}
