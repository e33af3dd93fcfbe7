package live

import (
	"net/http"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/report"
	"github.com/cistern-ml/cistern/trace/torchsnapshot"
)

func (h *Handler) snapshot(w http.ResponseWriter, r *http.Request) {
	s := h.config.Cache.Snapshot()
	if !flag(r, "addresses") {
		relocate(&s)
	}
	attachment(w, "snapshot.pickle")
	// A snapshot may be large, so it is sent while it is made. An error is of the client's
	// connection.
	_ = torchsnapshot.Write(w, torchsnapshot.State{Snapshot: s, Config: h.config.Cache.Config()})
}

func (h *Handler) report(w http.ResponseWriter, r *http.Request) {
	page, err := report.FromCache(h.config.Cache, h.steps.latest(h.config.Steps), report.Options{Addresses: flag(r, "addresses")})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = report.Write(w, page) // an error is of the client's connection
}

const (
	// alignment is the driver's granularity, and addresses keep it.
	alignment = 2 << 20
	// floor is the new lowest address. It is not 0, because 0 means no address.
	floor device.Ptr = 1 << 32
)

// relocate moves all addresses by one distance, so that they reveal nothing about the process.
func relocate(s *memcache.Snapshot) {
	lowest := ^device.Ptr(0)
	each := func(f func(*device.Ptr)) {
		for i := range s.Segments {
			f(&s.Segments[i].Address)
			for j := range s.Segments[i].Blocks {
				f(&s.Segments[i].Blocks[j].Address)
			}
		}
		for i := range s.History {
			if s.History[i].Address != 0 {
				f(&s.History[i].Address)
			}
		}
	}
	each(func(p *device.Ptr) { lowest = min(lowest, *p) })
	lowest -= lowest % alignment
	each(func(p *device.Ptr) { *p = *p - lowest + floor })
}
