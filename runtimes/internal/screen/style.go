package screen

import "strconv"

// style is SGR. Two underlines have a newer name, which the library knows; a line above it does not.
func (c *cleaner) style(q *csiSeq) {
	c.inText = false
	out := len(c.out)
	c.out = append(c.out, esc, '[')
	over, empty := c.over, true
	add := func(i int) {
		sep := byte(';')
		if q.sub[i] {
			sep = ':'
		}
		if !empty {
			c.out = append(c.out, sep)
		}
		empty = false
		if q.params[i] >= 0 {
			c.out = strconv.AppendInt(c.out, int64(min(q.params[i], 255)), 10)
		}
	}
	if q.n == 0 {
		over, empty = false, false
	}
	for i := 0; i < q.n; i++ {
		more := 0 // parameters that belong to this one
		for i+more+1 < q.n && q.sub[i+more+1] {
			more++
		}
		n := max(q.params[i], 0)
		if (n == 38 || n == 48 || n == 58) && more == 0 && i+1 < q.n {
			switch q.params[i+1] {
			case 5:
				more = min(2, q.n-1-i)
			case 2:
				more = min(4, q.n-1-i)
			}
		}
		switch {
		case n == 53 || n == 55:
			over = n == 53
			i += more
			continue
		case n == 21 && more == 0:
			if !empty {
				c.out = append(c.out, ';')
			}
			c.out, empty = append(c.out, "4:2"...), false
			continue
		case n == 0 && more == 0:
			over = false
		}
		for k := i; k <= i+more; k++ {
			add(k)
		}
		i += more
	}
	if c.out = append(c.out, 'm'); empty {
		c.out = c.out[:out]
	}
	c.setOver(over)
}

func (c *cleaner) setOver(on bool) {
	if c.over != on {
		c.over = on
		c.putLink()
	}
}

// putLink makes the link and the line above those of the pen.
func (c *cleaner) putLink() {
	mark := ""
	if c.over {
		mark = overMark
	}
	c.put("\x1b]8;" + mark + c.link + "\x07")
}

// look reads back from the emulator what a cursor brought along that was restored.
func (c *cleaner) look() {
	p := c.em.Pen()
	c.over, c.link = p.over, p.linkParams+";"+p.url
}
