package memcache

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/internal/sizes"
)

// A complete log cannot be a ring, because lost events can't be replayed. It must not grow without
// bound, and no call may wait for the reader under a lock. So events go into fixed-size pieces,
// under one lock that orders them: the events of each stream keep their order, and events under all
// locks are ordered relative to every stream's. A reader takes whole pieces. If it falls behind,
// calls that add events wait for it at their start, before they hold a lock (admit). Calls that are
// in flight may still add events, so there may be a few more pieces than mostPieces. A free must
// not fail, so a free whose context ends continues without waiting; there are at most as many of
// these as blocks.
//
// An event costs the copy of its 80 bytes and a clock read. Waking the reader for each event would
// cost more than that, so the reader is woken once per piece, and polls from time to time.

// HistoryStream is the complete record of a cache's operations between two moments, for one reader.
type HistoryStream struct {
	ledger      *ledger
	stacks      atomic.Uint32 // Stacks
	sites       callSites
	first, last HistoryState

	mu      sync.Mutex // after a shard's lock; only copying is done under it
	filling []historyEvent
	full    [][]historyEvent // the oldest first
	spare   [][]historyEvent
	options []string // of set_options, by number
	ended   bool
	caught  chan struct{} // closed when the reader has caught up

	entries []HistoryEntry // the reader's
	ready   chan struct{}  // a piece is full, or the stream has ended
	behind  atomic.Bool

	calls      atomic.Int32 // calls in flight
	overlapped atomic.Bool
}

const (
	historyPiece = 1024 // events, of 80 bytes each
	mostPieces   = 32   // full pieces that may wait for the reader
)

// HistoryState is what a cache holds at the start and at the end of a HistoryStream.
type HistoryState struct {
	Time     time.Time
	Stats    Stats
	Limit    int64             // of the reserved bytes; -1: none
	Options  string            // Config.Options
	Segments []SegmentSnapshot // by address
}

// Start is what the cache held when the stream began.
func (s *HistoryStream) Start() HistoryState { return s.first }

// End is the state of the cache when the stream ended; of a closed cache, right before its memory
// was freed. It is valid after Next has returned io.EOF.
func (s *HistoryStream) End() HistoryState { return s.last }

// Next returns the next events, and io.EOF after the last. Each stream's events are in their order.
// Next waits for a full piece, but at most for atMost, and then returns the events so far, perhaps
// none. The slice is valid until the next call. One goroutine at a time may call it.
func (s *HistoryStream) Next(atMost time.Duration) ([]HistoryEntry, error) {
	piece, err := s.take(atMost)
	if err != nil {
		return nil, err
	}
	clear(s.entries) // release strings and stacks
	s.entries = s.entries[:0]
	for i := range piece {
		s.entries = append(s.entries, piece[i].entry(s.first.Time.Add(piece[i].at)))
	}
	if piece != nil {
		clear(piece) // release labels, stacks and pools
		s.mu.Lock()
		s.spare = append(s.spare, piece[:0])
		s.mu.Unlock()
	}
	return s.entries, nil
}

// take removes and returns the oldest full piece for the reader, or after atMost the piece that is
// being filled; nil: there are no events.
func (s *HistoryStream) take(atMost time.Duration) (piece []historyEvent, err error) {
	s.mu.Lock()
	if len(s.full) == 0 && !s.ended {
		s.mu.Unlock()
		timer := time.NewTimer(atMost)
		select {
		case <-s.ready:
		case <-timer.C:
		}
		timer.Stop()
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	switch {
	case len(s.full) > 0:
		piece = s.full[0]
		s.full = slices.Delete(s.full, 0, 1)
		if s.caught != nil && len(s.full) <= mostPieces/2 {
			s.release()
		}
	case len(s.filling) > 0:
		piece, s.filling = s.filling, s.piece()
	case s.ended:
		return nil, io.EOF
	}
	return piece, nil
}

// Options returns the option string of a set_options event with the given Serial, without a limit.
// It is "" if the stream has no such event.
func (s *HistoryStream) Options(serial uint64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if serial >= uint64(len(s.options)) {
		return ""
	}
	return s.options[serial]
}

// Note adds an event with the number to the stream. The reader can use it as a marker between the
// cache's events.
func (s *HistoryStream) Note(number uint64) {
	_ = s.admit(context.Background(), 0)
	e := event(ActionNote)
	e.serial = number
	s.add(&e)
}

// add adds an event. Events after the end, from calls that hold no lock, are dropped.
func (s *HistoryStream) add(e *historyEvent) {
	e.at = time.Since(s.first.Time)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.filling = append(s.filling, *e)
	if e.frames > 0 && !Stacks(s.stacks.Load()).keepsStack(allActions[e.action]) {
		s.filling[len(s.filling)-1].setStack(nil)
	}
	if len(s.filling) < cap(s.filling) {
		return
	}
	s.full = append(s.full, s.filling)
	s.filling = s.piece()
	if len(s.full) >= mostPieces && s.caught == nil {
		s.caught = make(chan struct{})
		s.behind.Store(true)
	}
	s.wake()
}

// piece returns an empty piece. s.mu is held.
func (s *HistoryStream) piece() []historyEvent {
	n := len(s.spare)
	if n == 0 {
		return make([]historyEvent, 0, historyPiece)
	}
	p := s.spare[n-1]
	s.spare = s.spare[:n-1]
	return p
}

// release wakes the calls that wait for the reader. s.mu is held.
func (s *HistoryStream) release() {
	if s.caught != nil {
		close(s.caught)
		s.caught = nil
		s.behind.Store(false)
	}
}

func (s *HistoryStream) wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// noRequest is the number of bytes for calls that are not requests.
const noRequest = -1

// admit waits while the reader has fallen behind, unless ctx ends first. No lock is held. A nil
// stream does nothing.
func (s *HistoryStream) admit(ctx context.Context, bytes int64) error {
	for s != nil && s.behind.Load() {
		s.mu.Lock()
		caught := s.caught
		s.mu.Unlock()
		if caught == nil {
			return nil
		}
		select {
		case <-caught:
		case <-ctx.Done():
			call := "EmptyCache"
			if bytes != noRequest {
				call = "Alloc of " + sizes.Format(bytes)
			}
			return fmt.Errorf("memcache: %s: waiting for the reader of the history: %w", call, ctx.Err())
		}
	}
	return nil
}

// enter admits and begins a call, unless ctx ends first. No lock is held. A nil stream does
// nothing.
func (s *HistoryStream) enter(ctx context.Context, bytes int64) error {
	if err := s.admit(ctx, bytes); err != nil {
		return err
	}
	s.begin()
	return nil
}

// begin counts a call, and records an overlap if another call is in flight, because overlapping
// calls can't always be reproduced by a sequence of calls. Call leave at the end. If several calls
// begin at once each records it, so that none proceeds before the overlap is recorded.
func (s *HistoryStream) begin() {
	if s != nil && s.calls.Add(1) > 1 && !s.overlapped.Load() {
		e := event(ActionOverlap)
		s.add(&e)
		s.overlapped.Store(true)
	}
}

// leave ends a call that began with enter or begin.
func (s *HistoryStream) leave() {
	if s != nil {
		s.calls.Add(-1)
	}
}
