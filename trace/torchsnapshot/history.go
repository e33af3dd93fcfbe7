package torchsnapshot

import "github.com/cistern-ml/cistern/memcache"

// history is the data of a history that is needed before its first entry is written.
type history struct {
	known   int // entries that PyTorch has, too
	colours colours
	// later has labels that were set after the allocation, by the serial of the block: the last one
	// of each.
	later map[uint64]memcache.Label
}

// known reports whether PyTorch has the action, too.
func known(a memcache.Action) bool {
	switch a {
	case memcache.ActionAlloc, memcache.ActionFreeRequested, memcache.ActionFreeCompleted, memcache.ActionSegmentAlloc, memcache.ActionSegmentFree,
		memcache.ActionSegmentMap, memcache.ActionSegmentUnmap, memcache.ActionOOM, memcache.ActionSnapshot:
		return true
	}
	return false
}

func historyOf(entries []memcache.HistoryEntry) history {
	var h history
	for i := range entries {
		e := &entries[i]
		if known(e.Action) {
			h.known++
		} else if e.Action == memcache.ActionRelabel {
			if h.later == nil {
				h.later = make(map[uint64]memcache.Label)
			}
			h.later[e.Serial] = e.Label
		}
	}
	some, unknown := false, false
	for i := range entries {
		if e := &entries[i]; known(e.Action) {
			c := h.label(e).Category
			some, unknown = some || c != memcache.CategoryOther, unknown || c == memcache.CategoryOther
		}
	}
	switch {
	case some && unknown:
		h.colours = coloursWithUnknown
	case some:
		h.colours = coloursWithoutUnknown
	}
	return h
}

// label returns the last label of an entry's block, or else the entry's own: viewers show an
// allocation with its last label.
func (h *history) label(e *memcache.HistoryEntry) memcache.Label {
	if l, ok := h.later[e.Serial]; ok && e.Serial != 0 {
		return l
	}
	return e.Label
}
