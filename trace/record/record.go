package record

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cistern-ml/cistern/memcache"
)

// Options are the options of a recording.
type Options struct {
	// Stacks selects the entries with call stacks: StacksAlloc those of allocations and of the
	// driver's memory, StacksAll frees too. A stack costs the program some 0.2 µs on amd64, 0.1 µs
	// a frame elsewhere.
	Stacks memcache.Stacks
	// Gzip compresses the file.
	Gzip bool
}

// Recorder is a running recording. Its methods may be called from any goroutine; a nil Recorder
// records nothing.
type Recorder struct {
	stream *memcache.HistoryStream
	done   chan struct{} // the writing goroutine has ended
	err    error         // its error, valid after done

	mu sync.Mutex
	// The marks that are not written yet, by number; nil when nothing is written any more.
	marks map[uint64]mark
	last  uint64
	fresh []Mark // made together, so that many are one object of the Go heap
}

// mark is an argument of Begin or Step.
type mark struct {
	name string
	step int64
}

// flushEvery is the longest delay until an event is in the file.
const flushEvery = 250 * time.Millisecond

// Start begins to record the events of the cache, and writes them to w until Close of the Recorder
// or of the cache. The recording begins with the memory that is in use. A cache has one recording
// at a time. One goroutine at a time writes to w, and w must not need the cache to make progress.
// The caller closes w, after Close.
//
// If writing the beginning to w fails, Start returns that error, and nothing is recorded.
func Start(w io.Writer, cache *memcache.Cache, o Options) (*Recorder, error) {
	if w == nil || cache == nil {
		return nil, fmt.Errorf("record: Start: %w: the writer or the cache is nil", memcache.ErrInvalid)
	}
	stream, err := cache.StreamHistory(memcache.HistoryOptions{Stacks: o.Stacks})
	if err != nil {
		return nil, fmt.Errorf("record: Start: %w", err)
	}
	r := &Recorder{stream: stream, done: make(chan struct{}), marks: make(map[uint64]mark)}
	f := newFile(w, o.Gzip)
	enc := newEncoder(f.buffer, stream)
	enc.begin(cache, stream.Start())
	if err := f.flush(); err != nil {
		stream.Close()
		return nil, writeError(err)
	}
	go r.write(f, enc)
	return r, nil
}

// write writes until the stream ends or writing fails. It runs on a goroutine of its own.
func (r *Recorder) write(f *file, enc *encoder) {
	defer func() {
		r.mu.Lock()
		r.marks = nil
		r.mu.Unlock()
		close(r.done)
	}()
	flushed := time.Now()
	for {
		events, err := r.stream.Next(flushEvery - time.Since(flushed))
		if errors.Is(err, io.EOF) {
			enc.end(r.stream.End())
			r.err = writeError(f.close())
			return
		}
		for i := range events {
			if e := &events[i]; e.Action == memcache.ActionNote {
				r.writeMark(enc, e)
			} else {
				enc.entry(e)
			}
		}
		if now := time.Now(); now.Sub(flushed) >= flushEvery {
			flushed = now
			f.sync()
		}
		if f.failed() {
			r.stream.Close()
			r.err = writeError(f.err)
			return
		}
	}
}

// Close ends the recording, writes the remaining events, and returns the first error of writing. It
// waits for the writing goroutine. It does not close w. It is idempotent.
func (r *Recorder) Close() error {
	if r == nil {
		return nil
	}
	r.stream.Close()
	<-r.done
	return r.err
}

func writeError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("record: writing failed, and the recording ends there: %w", err)
}

// Mark is a part of the program in a recording. A nil Mark records nothing.
type Mark struct {
	recorder *Recorder
	number   uint64
	once     sync.Once
}

// Step marks the beginning of a training step, which ends with End of the result. Steps may
// overlap. They are numbered from 1, because 0 means no step, as in memcache.WithStep.
func (r *Recorder) Step(n int64) *Mark { return r.begin(mark{name: stepName, step: n}) }

// Begin marks the beginning of a part of the program, such as "forward".
func (r *Recorder) Begin(name string) *Mark { return r.begin(mark{name: name}) }

func (r *Recorder) begin(m mark) *Mark {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	if r.marks == nil {
		r.mu.Unlock()
		return nil
	}
	n := r.last
	r.last++
	r.marks[n] = m
	if len(r.fresh) == 0 {
		r.fresh = make([]Mark, 64)
	}
	made := &r.fresh[0]
	r.fresh = r.fresh[1:]
	r.mu.Unlock()
	made.recorder, made.number = r, n
	r.stream.Note(2 * n)
	return made
}

// End ends the part. A second End does nothing.
func (m *Mark) End() {
	if m != nil && m.recorder != nil {
		m.once.Do(func() { m.recorder.stream.Note(2*m.number + 1) })
	}
}

// writeMark writes the beginning or the end of a mark. Marks are numbered in the order of their
// beginnings in the file.
func (r *Recorder) writeMark(enc *encoder, e *memcache.HistoryEntry) {
	n := e.Serial / 2
	if e.Serial%2 == 1 {
		enc.endMark(n, e)
		return
	}
	r.mu.Lock()
	m := r.marks[n]
	delete(r.marks, n)
	r.mu.Unlock()
	enc.beginMark(n, m, e)
}

// file writes to a writer and keeps the first error.
type file struct {
	buffer *bufio.Writer
	gzip   *gzip.Writer // or nil
	err    error
}

func newFile(w io.Writer, compressed bool) *file {
	f := &file{}
	if compressed {
		f.gzip, _ = gzip.NewWriterLevel(w, gzip.BestSpeed)
		w = f.gzip
	}
	f.buffer = bufio.NewWriterSize(w, 64<<10)
	return f
}

// flush writes everything, so that a reader finds complete lines.
func (f *file) flush() error {
	if f.err == nil {
		f.err = f.buffer.Flush()
	}
	if f.err == nil && f.gzip != nil {
		f.err = f.gzip.Flush()
	}
	return f.err
}

func (f *file) sync() { _ = f.flush() }

// failed reports whether a write failed.
func (f *file) failed() bool {
	if f.err == nil {
		_, f.err = f.buffer.Write(nil) // the buffer's own error
	}
	return f.err != nil
}

// close writes everything and the end of the compressed data.
func (f *file) close() error {
	if f.err == nil {
		f.err = f.buffer.Flush()
	}
	if f.err == nil && f.gzip != nil {
		f.err = f.gzip.Close()
	}
	return f.err
}

// String returns a text such as "recording with 2 marks to write".
func (r *Recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprintf("recording with %d marks to write", len(r.marks))
}
