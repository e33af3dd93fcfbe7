package diff

// Diff is the difference of two runs, on one device or rank.
type Diff struct {
	Before string `json:"before"` // the names of the runs
	After  string `json:"after"`
	// Peaks has a row for each peak that both runs have, equal or not: "peak allocated" and "peak
	// reserved".
	Peaks []Row `json:"peaks"`
	// Dimensions are category, module, line and step.
	Dimensions []Dimension `json:"dimensions"`
	Notes      []string    `json:"notes"`
}

// Dimension is a way to divide the memory.
type Dimension struct {
	Name string `json:"name"` // "category", "module", "line" or "step"
	// Rows differ: those that grew, the most first, and then those that shrank, the most first.
	Rows []Row `json:"rows"`
	// Equal counts the rows that don't differ. EqualBytes are their bytes, except for steps, where
	// it is 0.
	Equal      int    `json:"equal"`
	EqualBytes int64  `json:"equal_bytes"`
	Missing    string `json:"missing,omitempty"` // the reason why there are no rows
}

// Row is the memory of one holder in both runs.
type Row struct {
	Name string `json:"name"`           // category, module, function or step; "": none, or unknown
	File string `json:"file,omitempty"` // of a line
	Line int64  `json:"line,omitempty"` // in the run after
	Was  int64  `json:"was,omitempty"`  // in the run before, if the line has moved

	Before Amount `json:"before"`
	After  Amount `json:"after"`
}

// Amount is memory.
type Amount struct {
	Bytes  int64 `json:"bytes"`
	Blocks int64 `json:"blocks,omitempty"` // 0 of peaks and steps
}

// Bytes returns the difference in bytes, positive for growth.
func (r Row) Bytes() int64 { return r.After.Bytes - r.Before.Bytes }

// Equal reports whether no row differs, of peaks and of the dimensions that both runs have.
func (d *Diff) Equal() bool {
	for _, x := range d.Dimensions {
		if len(x.Rows) > 0 {
			return false
		}
	}
	for _, p := range d.Peaks {
		if p.Before != p.After {
			return false
		}
	}
	return true
}
