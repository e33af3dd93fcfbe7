package host

// rows are what a strided copy touches of its source and its destination, in bytes.
type rows struct{ width, height, toPitch, fromPitch int64 }

// sides are the destination and the source of a copy of one range.
//
//go:norace
func (u *uses) sides() (to, from []byte) {
	for ; u != nil; u = u.more {
		for i := 0; i < u.n; i++ {
			switch x := &u.item[i]; {
			case x.bytes == nil: // a further mapping of the use before
			case x.write:
				to = x.bytes
			default:
				from = x.bytes
			}
		}
	}
	return to, from
}

// copy copies row by row, which is also what the race detector is told: the runtime declares what the builtin copy
// touches, here too.
//
//go:norace
func (r *rows) copy(u *uses) {
	to, from := u.sides()
	for i := int64(0); i < r.height; i++ {
		t, f := i*r.toPitch, i*r.fromPitch
		copy(to[t:t+r.width], from[f:f+r.width])
	}
}
