package autograd

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/cistern-ml/cistern/tensor"
)

// ParametersOf finds the parameters of a program's own model, a struct or a pointer to one, in the order of its fields:
//
//	type Block struct {
//		Ln1  *autograd.LayerNorm
//		Qkv  *autograd.Linear `param:"attn"`
//		Mlp  autograd.Sequential
//		Gain *autograd.Parameter
//	}
//
// has "ln1.weight", "ln1.bias", "attn.weight", "attn.bias", "mlp.0.weight", …, "gain". Exported fields are walked that are a
// *Parameter, what has a method Parameters, such as a [Layer], which is asked, and structs, pointers, interfaces, slices, arrays
// and maps of these. A field's name is that in its tag, or the field's in Python's style: InProj is "in_proj", and
// Fc1 "fc1"; `param:"-"` leaves a field out, and an embedded struct's fields are the outer one's. Elements are named by their index or
// key, in order. A parameter that is reached again, as tied weights are, stands once, under its first name, and pointers back to where
// the walk has come from are left out.
//
// What would be forgotten silently is told of by the parameters, which every optimiser and tape then refuses: an
// unexported field that is a parameter or a layer, a key that is no string or whole number, two parameters of one name.
//
// The model itself is walked even if it has a method Parameters, which may be a call of ParametersOf; only the layers of this package
// are asked.
func ParametersOf(model any) Parameters {
	w := newWalk(false)
	w.begin(model)
	return w.params
}

// BuffersOf finds a model's buffers as ParametersOf finds its parameters: those of the layers that are [Buffered], and exported fields
// that are a *tensor.Tensor with a tag, such as `buffer:"mean"`.
func BuffersOf(model any) []NamedTensor {
	w := newWalk(false)
	w.begin(model)
	return w.buffers
}

// Forwarder is what a model must have to be a layer: see [LayerOf].
type Forwarder interface {
	// Forward computes the model as [Layer] does.
	Forward(t *Tape, x *Variable) *Variable
}

// LayerOf makes a layer of a model, whose parameters and buffers are those that [ParametersOf] and [BuffersOf] find.
func LayerOf(model Forwarder) Layer { return module{model} }

type module struct{ Forwarder }

func (m module) Parameters() Parameters { return ParametersOf(m.Forwarder) }
func (m module) Buffers() []NamedTensor { return BuffersOf(m.Forwarder) }

// parameterized is what is asked for its parameters.
type parameterized interface{ Parameters() Parameters }

var (
	parameterType     = reflect.TypeFor[*Parameter]()
	tensorType        = reflect.TypeFor[*tensor.Tensor]()
	parameterizedType = reflect.TypeFor[parameterized]()
	ours              = parameterType.Elem().PkgPath()
)

// walk is one walk over a model.
type walk struct {
	shared  bool // what is reached again has its other names too
	params  Parameters
	buffers []NamedTensor
	seen    map[any]bool // parameters and buffers
	names   map[string]bool
	path    map[visit]bool
}

// visit is a pointer that the walk has gone through, but not come back from.
type visit struct {
	at  uintptr
	typ reflect.Type
}

func newWalk(shared bool) *walk {
	return &walk{shared: shared, seen: map[any]bool{}, names: map[string]bool{}, path: map[visit]bool{}}
}

func (w *walk) begin(model any) {
	v := reflect.ValueOf(model)
	if !v.IsValid() {
		return
	}
	base := v.Type()
	for base.Kind() == reflect.Pointer {
		base = base.Elem()
	}
	if base.PkgPath() != ours || !w.ask("", v) {
		w.walk("", v)
	}
}

// add takes a parameter, unless it has one name already.
func (w *walk) add(name string, p *Parameter) {
	if p == nil || w.seen[p] && !w.shared {
		return
	}
	if w.names[name] {
		w.refuse(name, "two parameters have that name")
		return
	}
	w.seen[p], w.names[name] = true, true
	w.params = append(w.params, Named{name, p})
}

func (w *walk) addBuffer(name string, t *tensor.Tensor) {
	if t == nil || w.seen[t] && !w.shared {
		return
	}
	w.seen[t] = true
	w.buffers = append(w.buffers, NamedTensor{name, t})
}

// refuse puts a parameter that says what is wrong in the place of what can't be found.
func (w *walk) refuse(name, why string) {
	w.params = append(w.params, Named{name, &Parameter{missing: fmt.Errorf("%w: %s: %s", ErrInvalid, name, why)}})
}

// ask takes the parameters and buffers of what has methods for them.
func (w *walk) ask(name string, v reflect.Value) bool {
	if !v.Type().Implements(parameterizedType) && reflect.PointerTo(v.Type()).Implements(parameterizedType) {
		pointer := reflect.New(v.Type()) // to a copy, which has the same parameters
		pointer.Elem().Set(v)
		v = pointer
	}
	layer, ok := v.Interface().(parameterized)
	if !ok {
		return false
	}
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return true
	}
	for _, p := range layer.Parameters() {
		if p.Parameter != nil && p.missing != nil {
			w.params = append(w.params, Named{join(name, p.Name), p.Parameter})
			continue
		}
		w.add(join(name, p.Name), p.Parameter)
	}
	for _, t := range buffersOf(layer, v) {
		w.addBuffer(join(name, t.Name), t.Tensor)
	}
	return true
}

// buffersOf are the buffers of what was asked for its parameters: those that it tells of, or what a walk finds.
func buffersOf(layer any, v reflect.Value) []NamedTensor {
	if b, ok := layer.(Buffered); ok {
		return b.Buffers()
	}
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	w := newWalk(true)
	w.walk("", v)
	return w.buffers
}

// walk goes through a value that is not asked.
func (w *walk) walk(name string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Interface:
		w.visit(name, v.Elem())
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		at := visit{v.Pointer(), v.Type()}
		if w.path[at] {
			return
		}
		w.path[at] = true
		w.visit(name, v.Elem())
		delete(w.path, at)
	case reflect.Slice, reflect.Array:
		if !mayHold(v.Type().Elem()) {
			return
		}
		for i := range v.Len() {
			w.visit(join(name, strconv.Itoa(i)), v.Index(i))
		}
	case reflect.Map:
		w.walkMap(name, v)
	case reflect.Struct:
		for i := range v.NumField() {
			w.field(name, v.Type().Field(i), v.Field(i))
		}
	}
}

// visit is what a walk does with a value that it comes to.
func (w *walk) visit(name string, v reflect.Value) {
	switch {
	case !v.IsValid() || v.Type() == tensorType:
	case v.Type() == parameterType:
		w.add(name, v.Interface().(*Parameter))
	case v.Kind() != reflect.Interface && w.ask(name, v):
	default:
		w.walk(name, v)
	}
}

func (w *walk) field(name string, f reflect.StructField, v reflect.Value) {
	tag := f.Tag.Get("param")
	buffer := f.Tag.Get("buffer")
	own := tag
	if own == "" {
		own = snake(f.Name)
	}
	switch {
	case tag == "-":
	case !f.IsExported() && !f.Anonymous:
		if holds(f.Type) {
			w.refuse(join(name, own), fmt.Sprintf("the field %s is not exported: export it, or tag it `param:\"-\"`", f.Name))
		}
	case !f.IsExported() && f.Type.Kind() != reflect.Struct: // an embedded pointer that reflection may not follow
	case v.Type() == tensorType:
		if buffer != "" {
			w.addBuffer(join(name, buffer), v.Interface().(*tensor.Tensor))
		}
	case f.Anonymous && tag == "":
		if f.IsExported() {
			w.visit(name, v)
		} else {
			w.walk(name, v)
		}
	default:
		w.visit(join(name, own), v)
	}
}

// walkMap goes through a map in the order of its keys.
func (w *walk) walkMap(name string, v reflect.Value) {
	if !mayHold(v.Type().Elem()) {
		return
	}
	keys := v.MapKeys()
	switch k := v.Type().Key().Kind(); {
	case k == reflect.String:
		slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) })
	case v.Type().Key().ConvertibleTo(reflect.TypeFor[int64]()) && k != reflect.Float32 && k != reflect.Float64:
		slices.SortFunc(keys, func(a, b reflect.Value) int {
			return cmp.Compare(a.Convert(reflect.TypeFor[int64]()).Int(), b.Convert(reflect.TypeFor[int64]()).Int())
		})
	default:
		w.refuse(name, fmt.Sprintf("the keys of a map are %v: want strings or whole numbers", v.Type().Key()))
		return
	}
	for _, k := range keys {
		w.visit(join(name, fmt.Sprint(k)), v.MapIndex(k))
	}
}

// holds reports whether the type itself is a parameter, a layer, or many of them.
func holds(t reflect.Type) bool {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Array || t.Kind() == reflect.Map {
		if t.Implements(parameterizedType) {
			return true
		}
		t = t.Elem()
	}
	return t == parameterType || t.Implements(parameterizedType) || reflect.PointerTo(t).Implements(parameterizedType)
}

// mayHold leaves out the elements that hold nothing, such as a slice's million numbers.
func mayHold(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Slice, reflect.Array, reflect.Map:
		return true
	}
	return holds(t)
}

// join is the name of a thing inside of another one.
func join(outer, inner string) string {
	if outer == "" || inner == "" {
		return outer + inner
	}
	return outer + "." + inner
}

// snake is a Go name in Python's style: InProj is in_proj, QKV qkv, and LN1 ln1.
func snake(name string) string {
	runes := []rune(name)
	var b strings.Builder
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 {
			before := runes[i-1]
			ends := i+1 < len(runes) && unicode.IsLower(runes[i+1]) && unicode.IsUpper(before)
			if before != '_' && (!unicode.IsUpper(before) || ends) {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
