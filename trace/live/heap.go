package live

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/google/pprof/profile"

	"github.com/cistern-ml/cistern/trace/heap"
)

// maxSeconds is the longest wait of heap?seconds.
const maxSeconds = 300

// now returns the present heap, with its peak if peak is set.
func (h *Handler) now(peak bool) heap.Heap {
	c := h.config.Cache
	out := heap.Heap{Device: c.Device().Name(), Time: time.Now()}
	inUse := c.Profile()
	out.InUse, out.Graphs = &inUse, c.GraphProfile().Holdings
	if peak {
		p := c.PeakProfile()
		out.Peak = &p
	}
	if h.config.Allocated != nil {
		out.Allocated = h.config.Allocated()
	}
	return out
}

// heap serves the holders of the memory or, with ?seconds, the changes in that time. The wait does
// not take one of the few slots, or a few clients could shut out all others.
func (h *Handler) heap(w http.ResponseWriter, r *http.Request) {
	text := r.URL.Query().Get("seconds")
	if text == "" {
		h.bounded(func(w http.ResponseWriter, _ *http.Request) { send(w, "heap.pb.gz", h.now(true).Write) })(w, r)
		return
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxSeconds {
		http.Error(w, fmt.Sprintf("seconds is %q: want a whole number from 1 to %d", text, maxSeconds), http.StatusBadRequest)
		return
	}
	if h.deltas.Add(1) > watchers {
		h.deltas.Add(-1)
		busy(w, watchers, "clients already wait for a difference")
		return
	}
	defer h.deltas.Add(-1)
	before := h.now(false)
	if h.looked != nil {
		h.looked()
	}
	timer := time.NewTimer(time.Duration(n) * time.Second)
	defer timer.Stop()
	select {
	case <-r.Context().Done():
		return
	case <-timer.C:
	case <-h.done: // what has changed up to here
	}
	select {
	case <-r.Context().Done():
		return
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	}
	after := h.now(false)
	send(h.patient(w), "heap-delta.pb.gz", func(w io.Writer) error {
		p, err := delta(before, after)
		if err != nil {
			return err
		}
		return p.Write(w)
	})
}

func (h *Handler) peak(w http.ResponseWriter, _ *http.Request) {
	p := h.config.Cache.PeakProfile()
	send(w, "peak.pb.gz", heap.Heap{Device: h.config.Cache.Device().Name(), Peak: &p}.Write)
}

// delta subtracts heaps, as net/http/pprof subtracts profiles.
func delta(before, after heap.Heap) (*profile.Profile, error) {
	p, err := parsed(before)
	if err != nil {
		return nil, err
	}
	q, err := parsed(after)
	if err != nil {
		return nil, err
	}
	p.Scale(-1)
	d, err := profile.Merge([]*profile.Profile{p, q})
	if err != nil {
		return nil, err
	}
	d.TimeNanos, d.DurationNanos = before.Time.UnixNano(), after.Time.Sub(before.Time).Nanoseconds()
	return d, nil
}

func parsed(h heap.Heap) (*profile.Profile, error) {
	var b bytes.Buffer
	if err := h.Write(&b); err != nil {
		return nil, err
	}
	return profile.Parse(&b)
}

// send makes the whole file before it sends the first byte, so that it can still report an error by
// its status.
func send(w http.ResponseWriter, name string, write func(io.Writer) error) {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	attachment(w, name)
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	_, _ = w.Write(b.Bytes()) // fails if the client has gone
}
