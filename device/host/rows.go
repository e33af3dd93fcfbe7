package host

// rows describes the bytes that a strided copy accesses in its source and its destination.
type rows struct{ width, height, toPitch, fromPitch int64 }

// sides returns the destination and the source of a copy of one range.
//
//go:norace
func (u *uses) sides() (to, from []byte) {
	for ; u != nil; u = u.more {
		for i := 0; i < u.n; i++ {
			switch x := &u.item[i]; {
			case x.bytes == nil: // a further mapping of the previous use
			case x.write:
				to = x.bytes
			default:
				from = x.bytes
			}
		}
	}
	return to, from
}

// copy copies row by row. That also declares the rows to the race detector, because the runtime
// declares the memory of the builtin copy, even here.
//
//go:norace
func (r *rows) copy(u *uses) {
	to, from := u.sides()
	for i := int64(0); i < r.height; i++ {
		t, f := i*r.toPitch, i*r.fromPitch
		copy(to[t:t+r.width], from[f:f+r.width])
	}
}
