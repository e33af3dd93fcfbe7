package peaks

import "slices"

// Window has the peaks of all goroutines' changes since it was opened, for a step or a scope. An
// open window costs each change a comparison for each gauge.
type Window struct {
	ledger *Ledger
	peaks  []int64
	rose   func(gauge int)
}

// Open opens a window. Unless rose is nil, it is called for each gauge whose peak in the window
// rose, after all changes of the Add that raised it, with all shards locked. So rose may read the
// ledger, but must not lock or add.
func (l *Ledger) Open(rose func(gauge int)) *Window {
	w := &Window{ledger: l, peaks: make([]int64, len(l.limits)), rose: rose}
	l.LockAll()
	defer l.UnlockAll()
	l.windows = append(l.windows, w)
	for _, s := range *l.shards.Load() {
		quotas := apart[int64](len(s.gauges))
		for i, g := range s.gauges {
			quotas[i] = g.used
			w.peaks[i] += g.used
		}
		s.quotas = append(s.quotas, quotas)
	}
	return w
}

// Peak is the peak of a gauge since the window was opened, until now or Close. All shards are
// locked, or the window is closed.
func (w *Window) Peak(gauge int) int64 { return w.peaks[gauge] }

// Close ends the window. A second Close does nothing.
func (w *Window) Close() {
	l := w.ledger
	l.LockAll()
	defer l.UnlockAll()
	i := slices.Index(l.windows, w)
	if i < 0 {
		return
	}
	l.windows = slices.Delete(l.windows, i, i+1)
	for _, s := range *l.shards.Load() {
		s.quotas = slices.Delete(s.quotas, i, i+1)
	}
}
