/** Columns of numbers: an element that is there, and where a number belongs in sorted ones. */

/**
 * Returns the element at an index that exists.
 * @template Value
 * @param {{readonly [index: number]: Value}} array
 * @param {number} index
 * @returns {Value}
 */
export function valueAt(array, index) {
  return /** @type {Value} */ (array[index]);
}

/**
 * Returns how many of sorted numbers are less than a value, or with `orEqual` not greater.
 * @param {{readonly [index: number]: number, length: number}} sorted
 * @param {number} value
 * @param {boolean} [orEqual]
 */
export function countBelow(sorted, value, orEqual = false) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    const here = valueAt(sorted, middle);
    if (here < value || (orEqual && here === value)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}
