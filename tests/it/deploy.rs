//! The default model, through the real pip.

use std::fs;

#[test]
fn the_default_model_is_fetched_and_whole() {
    let mut notes = Vec::new();
    let model = deploy::fetch::default_model(&mut |it| notes.push(format!("{it:?}"))).unwrap();
    assert_eq!(fs::metadata(&model).unwrap().len(), 98_362_432);
    // Once it is here, nothing is asked of anybody.
    let again = deploy::fetch::default_model(&mut |it| panic!("{it:?}")).unwrap();
    assert_eq!(again, model);
}
