package live

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/cistern-ml/cistern/trace"
)

const (
	// watchers is the most streams of events at a time.
	watchers = 64
	// heartbeat is the interval of comments in a stream, so that it never looks dead.
	heartbeat = 15 * time.Second
)

// events streams steps and states. After Close it refuses requests, because a browser would
// reconnect again and again to a stream that ends at once.
func (h *Handler) events(w http.ResponseWriter, r *http.Request) {
	select {
	case <-h.done:
		http.Error(w, "the handler is closed", http.StatusServiceUnavailable)
	default:
		h.stream(h.patient(w), r, &h.states)
	}
}

// stream sends each step at its end as a server-sent event. The id is the number of steps before
// it. A client that reconnects with the last id that it received (Last-Event-ID), as browsers do,
// gets the steps after that. Other clients begin with the next step, or ?last steps earlier. Unless
// states is nil the state is sent, too: at once, and when it has changed.
func (h *Handler) stream(w *patient, r *http.Request, states *sampler) {
	before, ok := wanted(w, r, 0)
	if !ok {
		return
	}
	if h.watching.Add(1) > watchers {
		h.watching.Add(-1)
		w.Header().Set("Retry-After", "10")
		http.Error(w, strconv.Itoa(watchers)+" clients are watching: try again", http.StatusServiceUnavailable)
		return
	}
	defer h.watching.Add(-1)
	count := h.steps.count()
	next := max(0, count-int64(min(before, h.config.Steps)))
	if last, err := strconv.ParseInt(r.Header.Get("Last-Event-ID"), 10, 64); err == nil && last >= 0 && last < count {
		next = last + 1
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	old := time.NewTimer(heartbeat) // with states: the sample is too old
	defer old.Stop()
	seen := int64(0) // the number of the last state sent
	for {
		if states != nil {
			s, err := states.sample(false)
			if err != nil {
				return
			}
			if s.number != seen {
				if _, err := fmt.Fprintf(w, "event: state\ndata: %s\n\n", s.text); err != nil {
					return
				}
			}
			seen = s.number
			old.Reset(time.Until(s.until))
		}
		steps, first, more := h.steps.since(next)
		if err := sendEvents(w, steps, first, first-next); err != nil {
			return
		}
		next = first + int64(len(steps))
		select {
		case <-more:
		case <-old.C:
		case <-beat.C:
			if _, err := fmt.Fprint(w, ": still here\n\n"); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-h.done:
			return
		}
	}
}

// sendEvents sends steps, of which the first has the number first, after the number of missed
// steps.
func sendEvents(w *patient, steps []trace.StepProfile, first, missed int64) error {
	if missed > 0 {
		if _, err := fmt.Fprintf(w, "event: missed\ndata: %d\n\n", missed); err != nil {
			return err
		}
	}
	for i, p := range steps {
		text, err := json.Marshal(p)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "id: %d\nevent: step\ndata: %s\n\n", first+int64(i), text); err != nil {
			return err
		}
	}
	return w.control.Flush()
}
