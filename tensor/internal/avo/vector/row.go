package main

import (
	"fmt"
	"math"
)

var negativeInfinity = math.Inf(-1)

// rows writes functions of a row and of numbers that were computed from the whole row. They compute
// in float64 and round once.
func rows() {
	eachUnit(true, func(u unit) {
		u.expTo("expTo")
		u.precise = true
		u.expTo("expToPrecise")
		u.precise = false
		u.row("scaleTo", "sets dst to x c", "dst *%s, x *float64, n int, c float64", false, func(at map[string]*stream, c map[string]vector) (int, func(k int, t *tail) vector) {
			return 2, func(k int, t *tail) vector {
				u.store(u.mul(u.load(at["x"], k, t), c["c"]), at["dst"], k, t)
				return nil
			}
		})
		u.row("expScale", "sets dst to exp(x - top) c", "dst, x *%s, n int, top, c float64", false, func(at map[string]*stream, c map[string]vector) (int, func(k int, t *tail) vector) {
			return 1, func(k int, t *tail) vector {
				u.store(u.mul(u.expMinus(u.sub(u.load(at["x"], k, t), c["top"])), c["c"]), at["dst"], k, t)
				return nil
			}
		})
		u.row("less", "sets dst to x - top - c", "dst, x *%s, n int, top, c float64", false, func(at map[string]*stream, c map[string]vector) (int, func(k int, t *tail) vector) {
			return 2, func(k int, t *tail) vector {
				u.store(u.sub(u.sub(u.load(at["x"], k, t), c["top"]), c["c"]), at["dst"], k, t)
				return nil
			}
		})
		u.row("softmaxGrad", "sets dst to y (dy - dot)", "dst, dy, y *%s, n int, dot float64", false, func(at map[string]*stream, c map[string]vector) (int, func(k int, t *tail) vector) {
			return 2, func(k int, t *tail) vector {
				u.store(u.mul(u.sub(u.load(at["dy"], k, t), c["dot"]), u.load(at["y"], k, t)), at["dst"], k, t)
				return nil
			}
		})
		u.precise = true
		u.row("logSoftmaxGrad", "sets dst to dy - exp(y) sum", "dst, dy, y *%s, n int, sum float64", false, func(at map[string]*stream, c map[string]vector) (int, func(k int, t *tail) vector) {
			return 1, func(k int, t *tail) vector {
				g := u.load(at["dy"], k, t)
				u.deduct(g, u.exp(u.load(at["y"], k, t)), c["sum"])
				u.store(g, at["dst"], k, t)
				return nil
			}
		})
		u.precise = false
		u.row("normalize", "sets dst to (x - mean) rstd w + b. sw and sb are 0 or 1", "dst, x, w, b *%s, n, sw, sb int, mean, rstd float64", false,
			func(at map[string]*stream, c map[string]vector) (int, func(k int, t *tail) vector) {
				u.stepped(at["w"], "sw")
				u.stepped(at["b"], "sb")
				return 1, func(k int, t *tail) vector {
					y := u.sub(u.load(at["x"], k, t), c["mean"])
					y = u.fma(y, u.mul(u.load(at["w"], k, t), c["rstd"]), u.load(at["b"], k, t))
					u.store(y, at["dst"], k, t)
					return nil
				}
			})
		u.row("normalizeGrad", "sets dst to rstd (w dy - own - (x - mean) along). sw is 0 or 1", "dst, dy, x, w *%s, n, sw int, mean, rstd, own, along float64", false,
			func(at map[string]*stream, c map[string]vector) (int, func(k int, t *tail) vector) {
				u.stepped(at["w"], "sw")
				return 1, func(k int, t *tail) vector {
					g := u.sub(u.mul(u.load(at["dy"], k, t), u.load(at["w"], k, t)), c["own"])
					u.deduct(g, u.sub(u.load(at["x"], k, t), c["mean"]), c["along"])
					u.store(u.mul(g, c["rstd"]), at["dst"], k, t)
					return nil
				}
			})
	})
}

// row writes a loop over pointers and numbers, which are named in the signature. It returns a sum
// if summed is set.
func (u unit) row(name, doc, signature string, summed bool, body func(at map[string]*stream, c map[string]vector) (unroll int, one func(k int, t *tail) vector)) {
	signature = fmt.Sprintf(signature, u.float())
	result := ""
	if summed {
		result = " float64"
	}
	u.function(name, "func("+signature+")"+result, doc+".")
	at, numbers, streams := map[string]*stream{}, map[string]vector{}, []*stream{}
	for _, p := range parameters(signature) {
		switch p.kind {
		case "float64":
			numbers[p.name] = u.double(p.name)
		case "int":
		default:
			size := u.elem
			if p.kind == "*float64" {
				size = 8
			}
			at[p.name] = argument(p.name, size)
			streams = append(streams, at[p.name])
		}
	}
	n := count()
	unroll, one := body(at, numbers)
	sums := u.accumulators(unroll)
	u.loop(n, unroll, streams, func(k int, t *tail) {
		if v := one(k, t); v != nil {
			u.addInto(sums[k], v, t)
		}
	})
	if summed {
		u.result(u.together(sums), 0, 8)
		return
	}
	u.end()
}

func (u unit) expTo(name string) {
	u.row(name, "sets dst to exp(x - top), and returns its sum", "dst *float64, x *%s, n int, top float64", true, func(at map[string]*stream, c map[string]vector) (int, func(k int, t *tail) vector) {
		return 2, func(k int, t *tail) vector {
			e := u.expMinus(u.sub(u.load(at["x"], k, t), c["top"]))
			u.storeDouble(e, at["dst"], k, t)
			return e
		}
	})
}
