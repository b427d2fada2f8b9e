//! The most that flows between two vertices: Dinic's algorithm, over edges that carry as much in both directions.

use std::collections::VecDeque;

/// Capacity that stands for no limit: above any sum of real ones, and far below where sums overflow.
pub(crate) const UNBOUNDED: u64 = u64::MAX / 1024;

/// Returns the flow, or `None` if it crosses an unbounded edge.
pub(crate) fn bounded(flow: u64) -> Option<u64> {
    (flow < UNBOUNDED).then_some(flow)
}

/// A graph of edges with capacities.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    edges: Vec<(usize, usize, u64)>,
    vertices: usize,
}

#[derive(Debug)]
struct FlowArc {
    to: usize,
    left: u64,
    back: usize,
}

impl Graph {
    /// Creates a graph of so many vertices, without edges.
    #[must_use]
    pub fn new(vertices: usize) -> Graph {
        Graph { edges: Vec::new(), vertices }
    }

    /// Joins two vertices. What is out of range, or joins a vertex with itself, is of no matter to any flow.
    pub fn join(&mut self, from: usize, to: usize, capacity: u64) {
        if from < self.vertices && to < self.vertices && from != to {
            self.edges.push((from, to, capacity.min(UNBOUNDED)));
        }
    }

    /// Returns the number of vertices.
    #[must_use]
    pub fn vertices(&self) -> usize {
        self.vertices
    }

    /// Returns the edges, with their capacities.
    #[must_use]
    pub fn edges(&self) -> &[(usize, usize, u64)] {
        &self.edges
    }

    /// Returns the most that flows from all of `sources` to all of `sinks` at the same time, which is what the
    /// narrowest cut between them carries (Ford and Fulkerson, 1956). A set that is empty, or has a vertex of the other
    /// one, makes no sense: 0.
    #[must_use]
    pub fn flow(&self, sources: &[usize], sinks: &[usize]) -> u64 {
        if sources.is_empty() || sinks.is_empty() || sources.iter().any(|source| sinks.contains(source)) {
            return 0;
        }
        let (source, sink) = (self.vertices, self.vertices + 1);
        let mut arcs: Vec<Vec<FlowArc>> = Vec::new();
        arcs.resize_with(self.vertices + 2, Vec::new);
        for (from, to, capacity) in &self.edges {
            pair(&mut arcs, (*from, *capacity), (*to, *capacity));
        }
        // The algorithm knows one source and one sink: a vertex before all of them, and one behind.
        sources.iter().for_each(|vertex| pair(&mut arcs, (source, UNBOUNDED), (*vertex, 0)));
        sinks.iter().for_each(|vertex| pair(&mut arcs, (*vertex, UNBOUNDED), (sink, 0)));
        let mut total = 0_u64;
        while let Some(levels) = levels(&arcs, source, sink) {
            // Arcs that were found to lead nowhere stay out of all paths of this level graph, which is what makes
            // the algorithm quick.
            let mut next = vec![0; arcs.len()];
            loop {
                let pushed = push(&mut arcs, &levels, &mut next, (source, sink));
                if pushed == 0 {
                    break;
                }
                total = total.saturating_add(pushed);
            }
        }
        total.min(UNBOUNDED)
    }
}

/// Adds an arc each way: with what each carries away from its vertex.
fn pair(arcs: &mut [Vec<FlowArc>], (from, there): (usize, u64), (to, back): (usize, u64)) {
    let places = (arcs.get(from).map_or(0, Vec::len), arcs.get(to).map_or(0, Vec::len));
    if let Some(list) = arcs.get_mut(from) {
        list.push(FlowArc { to, left: there, back: places.1 });
    }
    if let Some(list) = arcs.get_mut(to) {
        list.push(FlowArc { to: from, left: back, back: places.0 });
    }
}

/// Returns the distance of each vertex from the source over arcs with something left; nothing if the sink is out of
/// reach.
fn levels(arcs: &[Vec<FlowArc>], source: usize, sink: usize) -> Option<Vec<usize>> {
    let mut levels = vec![usize::MAX; arcs.len()];
    let mut queue = VecDeque::from([source]);
    *levels.get_mut(source)? = 0;
    while let Some(vertex) = queue.pop_front() {
        let next = levels.get(vertex)? + 1;
        for arc in arcs.get(vertex)?.iter().filter(|arc| arc.left > 0) {
            let level = levels.get_mut(arc.to)?;
            if *level == usize::MAX {
                *level = next;
                queue.push_back(arc.to);
            }
        }
    }
    (*levels.get(sink)? != usize::MAX).then_some(levels)
}

/// Sends as much as one path of the level graph carries; 0 if there is none left. `next` remembers which arcs lead
/// nowhere.
fn push(
    arcs: &mut [Vec<FlowArc>],
    levels: &[usize],
    next: &mut [usize],
    (source, sink): (usize, usize),
) -> u64 {
    let mut path: Vec<(usize, usize)> = Vec::new();
    let mut vertex = source;
    while vertex != sink {
        let at = next.get(vertex).copied().unwrap_or(usize::MAX);
        match arcs.get(vertex).and_then(|list| list.get(at)) {
            Some(arc) if arc.left > 0 && is_one_further(levels, vertex, arc.to) => {
                path.push((vertex, at));
                vertex = arc.to;
            }
            Some(_) => advance(next, vertex),
            None => {
                // A dead end: the arc that led here leads nowhere.
                let Some((before, _)) = path.pop() else { return 0 };
                advance(next, before);
                vertex = before;
            }
        }
    }
    let arc = |arcs: &[Vec<FlowArc>], (vertex, at): (usize, usize)| {
        arcs.get(vertex).and_then(|list| list.get(at)).map(|arc| (arc.left, arc.to, arc.back))
    };
    let least = path.iter().filter_map(|step| arc(arcs, *step)).map(|(left, ..)| left).min().unwrap_or(0);
    // The search would find the same path for ever.
    assert!(least > 0, "a path that carries nothing");
    for step in path {
        let Some((_, to, back)) = arc(arcs, step) else { continue };
        if let Some(there) = arcs.get_mut(step.0).and_then(|list| list.get_mut(step.1)) {
            there.left -= least;
        }
        if let Some(back) = arcs.get_mut(to).and_then(|list| list.get_mut(back)) {
            back.left = back.left.saturating_add(least);
        }
    }
    least
}

fn is_one_further(levels: &[usize], from: usize, to: usize) -> bool {
    let level = |vertex: usize| levels.get(vertex).copied().unwrap_or(usize::MAX);
    level(from).checked_add(1).is_some_and(|further| further == level(to))
}

fn advance(next: &mut [usize], vertex: usize) {
    if let Some(at) = next.get_mut(vertex) {
        *at += 1;
    }
}
