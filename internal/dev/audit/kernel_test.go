package audit

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// operated is an operation of the program, with the number of history entries before it.
type operated struct {
	entries int
	label   memcache.Label
}

// ran is a kernel: its operation, the steps that were open when it was launched, and those that had
// ended.
type ran struct {
	operation  string
	open, over []int64
}

// shapes is the text about an operation.
type shapes string

func (s shapes) String() string { return string(s) }

// operate queues an operation of so many kernels.
func (w *world) operate(in *scene, label memcache.Label, kernels int) {
	ctx, label := w.labelled(in, label)
	name := fmt.Sprintf("operation %d", len(w.operated))
	queued := w.timeline.Operation(ctx, w.main, name, shapes("shapes of "+name))
	w.operated = append(w.operated, operated{len(w.books.events), label})
	w.drawing = append(w.drawing, span{"operation: " + name, placed(label)})
	for i := range kernels {
		k := ran{operation: name}
		for _, s := range w.books.steps {
			k.open = append(k.open, s.number)
		}
		for _, s := range w.ended {
			k.over = append(k.over, s.number)
		}
		kernel := fmt.Sprintf("kernel %d of %s", i, name)
		require.NoError(w.t, w.main.Launch(&device.Launch{Name: kernel, Func: func() {}}))
		w.kernels[kernel] = k
		about := placed(label)
		about["operation"], about["shapes"] = name, "shapes of "+name
		w.drawing = append(w.drawing, span{"kernel: " + kernel, about})
	}
	queued()
}

// placed is a label as the timeline shows it.
func placed(l memcache.Label) figures {
	f := figures{}
	if l.Module != "" {
		f["module"] = l.Module
	}
	switch l.Category {
	case memcache.CategoryActivation:
		f["pass"] = "forward"
	case memcache.CategoryGradient:
		f["pass"] = "backward"
	}
	if l.Step != 0 {
		f["step"] = l.Step
	}
	return f
}

// checkDrawnKernels compares the positions of kernels with the order of the program: inside of open
// steps, after ended ones, before later ones. It also checks the beginnings of their arrows.
func (w *world) checkDrawnKernels(events []drawing) {
	const rounding = 1e-3 // of microseconds in a float64
	steps, begins, arrows := map[int64]drawing{}, map[int64]drawing{}, map[string]string{}
	kernels, operations := map[[2]any]string{}, []drawing{}
	for _, e := range events {
		switch {
		case e.Kind == "device step":
			var n int64
			_, err := fmt.Sscanf(e.Name, "step %d", &n)
			require.NoError(w.t, err)
			steps[n] = e
		case e.Kind == "operation":
			operations = append(operations, e)
		case e.Kind == "kernel":
			kernels[[2]any{e.Tid, e.From}] = e.Name
		case e.Phase == "s":
			begins[e.ID] = e
		case e.Phase == "f":
			s := begins[e.ID]
			for _, o := range operations {
				if o.Tid == s.Tid && o.From <= s.From && s.From < o.From+o.Dur {
					arrows[kernels[[2]any{e.Tid, e.From}]] = o.Name
				}
			}
		}
	}
	for _, e := range events {
		if e.Kind != "kernel" {
			continue
		}
		k := w.kernels[e.Name]
		require.Equal(w.t, k.operation, arrows[e.Name], "%v: the operation of %s", w, e.Name)
		state := map[int64]string{}
		for _, n := range k.open {
			state[n] = "open"
		}
		for _, n := range k.over {
			state[n] = "over"
		}
		for n, s := range steps {
			switch state[n] {
			case "open":
				require.True(w.t, s.From <= e.From+rounding && e.From+e.Dur <= s.From+s.Dur+rounding, "%v: %s of step %d", w, e.Name, n)
			case "over":
				require.LessOrEqual(w.t, s.From+s.Dur, e.From+rounding, "%v: %s after step %d", w, e.Name, n)
			default:
				require.LessOrEqual(w.t, e.From+e.Dur, s.From+rounding, "%v: %s before step %d", w, e.Name, n)
			}
		}
	}
}

// drawnLayers are the layers with their passes and steps. Labels that follow each other in a part
// of the model are a stretch of one step and at most one pass, to which labels of no pass belong.
func (w *world) drawnLayers() map[string]bool {
	var labels []memcache.Label
	next := w.operated
	for i, e := range w.books.events {
		for len(next) > 0 && next[0].entries <= i {
			labels, next = append(labels, next[0].label), next[1:]
		}
		if e.Action == memcache.ActionAlloc {
			labels = append(labels, e.Label)
		}
	}
	for _, o := range next {
		labels = append(labels, o.label)
	}
	first := func(l memcache.Label) string { name, _, _ := strings.Cut(l.Module, "."); return name }
	passes, stretches, stretch := make([]string, len(labels)), make([]int, len(labels)), 0
	for i, l := range labels {
		pass, _ := placed(l)["pass"].(string)
		before := ""
		if i > 0 {
			before = passes[i-1]
			apart := first(l) != first(labels[i-1]) || first(l) == ""
			if apart || l.Step != labels[i-1].Step || pass != "" && before != "" && pass != before {
				stretch++
				before = ""
			}
		}
		if passes[i], stretches[i] = before, stretch; pass != "" {
			passes[i] = pass
		}
	}
	layers := map[string]bool{}
	for i, l := range labels {
		if l.Module == "" {
			continue
		}
		parts := strings.Split(l.Module, ".")
		for n := range parts {
			path, last := strings.Join(parts[:n+1], "."), i
			for j := i + 1; j < len(labels) && stretches[j] == stretches[i] && (labels[j].Module == path || strings.HasPrefix(labels[j].Module, path+".")); j++ {
				last = j
			}
			name, step := path, any(nil)
			if p := passes[last]; p != "" {
				name += " " + p
			}
			if l.Step != 0 {
				step = l.Step
			}
			layers[fmt.Sprint(name, " ", step)] = true
		}
	}
	return layers
}
