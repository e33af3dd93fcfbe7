package loader

// Taken reports whether a call has the turn of Next and Start.
func (l *Loader) Taken() bool { return len(l.turn) > 0 }
