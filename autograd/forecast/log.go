package forecast

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/cistern-ml/cistern/memcache"
)

// log records a cache's history from the start of a program to the end of its second step.
type log struct {
	stream  *memcache.HistoryStream
	once    sync.Once
	done    chan struct{}
	entries []memcache.HistoryEntry // allocations, frees, labels, notes; valid after done
}

func startLog(cache *memcache.Cache) (*log, error) {
	stream, err := cache.StreamHistory(memcache.HistoryOptions{Stacks: memcache.StacksAlloc})
	if err != nil {
		return nil, err
	}
	l := &log{stream: stream, done: make(chan struct{})}
	go l.read()
	return l, nil
}

func (l *log) read() {
	defer close(l.done)
	for {
		entries, err := l.stream.Next(time.Second)
		for _, e := range entries {
			switch e.Action {
			case memcache.ActionAlloc, memcache.ActionFreeRequested, memcache.ActionRelabel, memcache.ActionNote:
				l.entries = append(l.entries, e)
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
	}
}

// end ends the log and waits until all of it is read.
func (l *log) end() {
	l.once.Do(l.stream.Close)
	<-l.done
}

// walk calls f for each entry. live has the blocks that are allocated after the entry, by their
// serials and with their latest labels; second reports whether the second step has begun.
func (l *log) walk(f func(e *memcache.HistoryEntry, live map[uint64]memcache.HistoryEntry, second bool)) {
	live, second := make(map[uint64]memcache.HistoryEntry), false
	for i := range l.entries {
		e := &l.entries[i]
		switch b, ok := live[e.Serial]; {
		case e.Action == memcache.ActionNote:
			second = e.Serial == 2
		case e.Action == memcache.ActionAlloc:
			live[e.Serial] = *e
		case e.Action == memcache.ActionFreeRequested:
			delete(live, e.Serial)
		case ok: // a new label
			b.Label = e.Label
			live[e.Serial] = b
		}
		f(e, live, second)
	}
}
