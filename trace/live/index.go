package live

import (
	"bytes"
	"embed"
	"net/http"
	"time"

	"github.com/cistern-ml/cistern/trace/internal/page"
)

//go:embed page
var files embed.FS

// index has the initial data of the index page's script.
type index struct {
	State  state   `json:"state"`
	Before []point `json:"before"` // the latest steps, the oldest first
}

// point has the figures of a step that the chart draws, under the names of trace.StepProfile.
type point struct {
	Start         time.Time     `json:"start"`
	HostTime      time.Duration `json:"host_time_ns"`
	AllocatedPeak int64         `json:"allocated_peak"`
	AllocatedEnd  int64         `json:"allocated_end"`
	Reserved      int64         `json:"reserved"`
}

// points is the number of points of the chart, each of half a second.
const points = 600

func (h *Handler) index(w http.ResponseWriter, _ *http.Request) {
	now, err := h.states.sample(true)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	data := index{State: now.state, Before: []point{}}
	for _, p := range h.steps.latest(points) {
		data.Before = append(data.Before, point{p.Start, p.HostTime, p.AllocatedPeak, p.AllocatedEnd, p.Reserved})
	}
	p := page.Page{
		Title:    now.state.Title,
		Body:     page.File(files, "page", "page.html"),
		Style:    page.File(files, "page", "page.css"),
		Script:   page.File(files, "page", "recent.js") + page.File(files, "page", "page.js"),
		Data:     page.JSON(data),
		Connects: true,
	}
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", p.Policy()+"; frame-ancestors 'none'")
	_, _ = w.Write(b.Bytes()) // fails if the client has gone
}
