package autograd

// room is memory for a tape's variables. The program may have pointers to them, so that they are
// new for each tape, and used again only by one that was told so ([Tape.Reset]).
type room struct {
	fresh  []Variable   // for results to come
	group  int          // how many are made next
	again  bool         // the tape was reset
	groups [][]Variable // of those that are used again
	at     int          // of these, how many this step has come to
}

// The least and the most variables that are made at a time.
const (
	leastVariables = 16
	mostVariables  = 512
)

// take returns an empty variable.
func (r *room) take() *Variable {
	if len(r.fresh) == 0 {
		r.more()
	}
	v := &r.fresh[0]
	r.fresh = r.fresh[1:]
	return v
}

func (r *room) more() {
	if r.at < len(r.groups) {
		r.fresh = r.groups[r.at]
		r.at++
		return
	}
	r.fresh = make([]Variable, min(max(r.group, leastVariables), mostVariables))
	r.group = 2 * len(r.fresh)
	if r.again {
		r.groups = append(r.groups, r.fresh)
		r.at++
	}
}

// reset empties what was taken, for a step that takes expected.
func (r *room) reset(expected int) {
	if !r.again {
		*r = room{again: true, group: expected}
		return
	}
	for _, g := range r.groups[:r.at] {
		clear(g)
	}
	r.fresh, r.at = nil, 0
}

// newVariable makes a variable without a value.
func (t *Tape) newVariable() *Variable {
	v := t.take()
	t.variables++
	v.tape, v.number = t, t.variables
	return v
}
