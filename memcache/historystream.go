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

// A log of everything cannot be a ring: what is lost can't be replayed. Nor may it grow without bound, nor may anything wait
// under a lock. So events go into pieces of memory of a fixed size, under one lock that gives them one order, in which each
// stream's are as they happened, and those under all locks are for all. A reader takes the pieces away whole. If it falls
// behind, whatever adds events waits for it where it begins, before it holds anything (admit): what is under way then may still
// add its events, so that there are more pieces than the reader was allowed to fall behind, but not many. A free must not
// fail: one whose context ends goes on without waiting, of which there are at most as many as blocks.
//
// An event costs the copy of its 80 bytes and a look at the clock; a wake-up of the reader for each
// would cost more than all that, so it is woken for each piece, and looks by itself from time to
// time.

// HistoryStream is everything that a cache does, without loss, from one moment to another, for one reader.
type HistoryStream struct {
	ledger      *ledger
	stacks      atomic.Uint32 // Stacks
	sites       callSites
	first, last HistoryState

	mu      sync.Mutex // after a shard's; nothing is done under it but copying
	filling []historyEvent
	full    [][]historyEvent // the oldest first
	spare   [][]historyEvent
	options []string // of set_options, by number
	ended   bool
	caught  chan struct{} // closed when the reader is not behind any more

	entries []HistoryEntry // the reader's
	ready   chan struct{}  // a piece is full, or the stream has ended
	behind  atomic.Bool

	calls      atomic.Int32 // under way
	overlapped atomic.Bool
}

const (
	historyPiece = 1024 // events, of 80 bytes each
	mostPieces   = 32   // that may wait for the reader
)

// HistoryState is what a cache holds at the start and at the end of a HistoryStream.
type HistoryState struct {
	Time     time.Time
	Stats    Stats
	Limit    int64             // of the bytes reserved; -1: none
	Options  string            // Config.Options
	Segments []SegmentSnapshot // by address
}

// Start is what the cache held when the stream began.
func (s *HistoryStream) Start() HistoryState { return s.first }

// End is what it held when the stream ended; of a cache that was closed, right before it gave its memory back. It is valid
// once Next has returned io.EOF.
func (s *HistoryStream) End() HistoryState { return s.last }

// Next returns the next events, in an order that is that of each stream, and io.EOF after the last. It waits for many at a time,
// but at most for so long: then it returns what there is, perhaps nothing. The slice is valid until the next call. One
// goroutine at a time calls it.
func (s *HistoryStream) Next(atMost time.Duration) ([]HistoryEntry, error) {
	piece, err := s.take(atMost)
	if err != nil {
		return nil, err
	}
	clear(s.entries) // of strings and stacks
	s.entries = s.entries[:0]
	for i := range piece {
		s.entries = append(s.entries, piece[i].entry(s.first.Time.Add(piece[i].at)))
	}
	if piece != nil {
		clear(piece) // of labels, stacks and pools
		s.mu.Lock()
		s.spare = append(s.spare, piece[:0])
		s.mu.Unlock()
	}
	return s.entries, nil
}

// take takes the oldest piece for the reader, or what there is of one after so long; nil: there is
// nothing.
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

// Options is the option string of a set_options, by its Serial: the options without a limit; "" if no set_options that the stream has had bears the number.
func (s *HistoryStream) Options(serial uint64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if serial >= uint64(len(s.options)) {
		return ""
	}
	return s.options[serial]
}

// Note puts an event of its own between those of the cache: a place that the reader can tell by its number.
func (s *HistoryStream) Note(number uint64) {
	_ = s.admit(context.Background(), 0)
	e := event(ActionNote)
	e.serial = number
	s.add(&e)
}

// add enters an event. What comes after the end, from a call that holds no lock, is left out.
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

// piece is an empty piece. s.mu is held.
func (s *HistoryStream) piece() []historyEvent {
	n := len(s.spare)
	if n == 0 {
		return make([]historyEvent, 0, historyPiece)
	}
	p := s.spare[n-1]
	s.spare = s.spare[:n-1]
	return p
}

// release wakes the waiters for the reader. s.mu is held.
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

// noRequest stands for the bytes of a call that requests none.
const noRequest = -1

// admit waits while the reader is behind, unless ctx ends first. No lock is held. A nil stream does nothing.
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

// enter begins a call, unless ctx ends before the reader lets it. No lock is held. A nil stream does nothing.
func (s *HistoryStream) enter(ctx context.Context, bytes int64) error {
	if err := s.admit(ctx, bytes); err != nil {
		return err
	}
	s.begin()
	return nil
}

// begin notes if another call is under way, since what calls that overlap do can't always be had again by making them one
// after the other. leave follows. Several that begin at once each note it, so that none does anything before it is noted.
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
